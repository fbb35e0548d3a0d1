-- Control: what people decide while workers run. reltask runs it itself. It can be run again: an
-- existing table stays as it is.
--
-- Version 6; code of version 6 or newer may run on it: no earlier one was released.
--
-- reltask_pauses   queues and tasks of which nothing is claimed, with who paused them, when and why
-- reltask_actions  what operators did through the dashboard
-- reltask_keys     which job has the key of a unique task
-- reltask_limits   how many jobs may run at once, and start in a time; one row per declared limit
-- reltask_limit_keys  what is taken of a limit, one row per key: the limit's name, or name:value
--                     for a limit that counts by a value

create table if not exists reltask_pauses (
    kind      text    not null check (kind in ('queue', 'task')),
    name      text    not null,                         -- of the queue or the task
    reason    text,
    paused_by text    not null,                         -- a person or a program, as it says itself
    paused_at integer not null,
    primary key (kind, name),

    constraint pauses_texts_fit check (
        length(name) between 1 and 2000 and length(reason) <= 2000
        and length(paused_by) between 1 and 2000
    ),
    constraint pauses_texts_are_printable check (
        name || coalesce(reason, '') || paused_by not glob
            '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
    ),
    constraint pauses_paused_at_in_range check (
        typeof(paused_at) = 'integer' and paused_at between 0 and 221845391999999999
    )
) without rowid;

-- What operators did through the dashboard: recorded before it is done, and completed afterwards.
create table if not exists reltask_actions (
    id      text    primary key,                        -- made by the dashboard
    at      integer not null,
    actor   text    not null,                           -- as the application names the person
    action  text    not null,                           -- retry, cancel, run now, pause …
    target  text    not null,                           -- a job, a queue, a task, or a filter
    seen    text,                                       -- the fence or term that the page showed
    jobs    integer not null,                           -- how many it was meant for
    outcome text,                                       -- null: it was begun, and may be done
    changed integer,                                    -- how many were changed

    constraint actions_texts_fit check (
        length(actor) between 1 and 2000 and length(action) between 1 and 2000
        and length(target) <= 10000 and length(seen) <= 2000 and length(outcome) <= 10000
    ),
    constraint actions_texts_are_printable check (
        actor || action || target || coalesce(seen, '') || coalesce(outcome, '') not glob
            '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
    ),
    constraint actions_counts_in_range check (jobs >= 0 and changed >= 0),
    constraint actions_at_in_range check (
        typeof(at) = 'integer' and at between 0 and 221845391999999999
    )
) without rowid;

create index if not exists reltask_actions_latest on reltask_actions (at, id);

-- The keys of unique tasks. The primary key is the only constraint. A key is taken while its job is
-- there and not dead, and before `until`: the end of a job does not touch this table. A row whose
-- job is gone is taken over by the next job, or removed by the maintenance.
create table if not exists reltask_keys (
    task        text    not null,
    key         text    not null,                       -- hash of arguments
    job_id      text    not null,                       -- the job that has it, or had it last
    until       integer,                                -- taken until then at least; null: no time
    until_start integer not null,                       -- free when the job's run begins
    primary key (task, key),

    constraint keys_names_fit check (
        length(task) between 1 and 2000 and length(key) between 1 and 2000
    ),
    constraint keys_names_are_printable check (
        task || key not glob
            '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
    ),
    constraint keys_until_in_range check (
        typeof(until) in ('integer', 'null') and until between 0 and 225032601599999999
        and until_start in (0, 1)
    )
) without rowid;

-- A claim takes a place of each of the job's keys, and a token of those that have a rate. Only
-- claims write limit_keys. The end of a claim inserts a mark instead, because it may be part of a
-- transaction that stays open: the triggers below see every end, whichever statement makes it.
create table if not exists reltask_limits (
    name           text    primary key,
    running        integer,                             -- at once, per key; null: any number
    rate_count     integer,                             -- starts in rate_period, per key;
    rate_period_ms integer,                             -- null: any number
    burst          integer,                             -- the most tokens that a key can have
    declaration    text    not null,                    -- hash of the declaration in code
    app_version    text,                                -- of the app that declared it
    changed_at     integer not null,                    -- by a declaration or an operator

    constraint limits_names_fit check (
        length(name) between 1 and 100 and instr(name, ':') = 0
        and length(declaration) <= 2000 and length(app_version) <= 2000
    ),
    constraint limits_in_range check (
        running between 0 and 1000000 and rate_count between 1 and 1000000000
        and rate_period_ms between 1 and 3155760000000 and burst between 1 and 1000000000
    ),
    constraint limits_rate_is_whole check (
        (rate_count is null) = (rate_period_ms is null) and (rate_count is null) = (burst is null)
    ),
    constraint limits_changed_at_in_range check (
        typeof(changed_at) = 'integer' and changed_at between 0 and 221845391999999999
    )
) without rowid;

create table if not exists reltask_limit_keys (
    key         text    primary key,
    name        text    not null,                       -- of the limit
    running     integer not null,                       -- places taken, less marks that were folded
    tokens      real    not null,                       -- at refilled_at
    refilled_at integer not null,
    seq         integer not null default 0,             -- grows with every look at the key

    constraint limit_keys_in_range check (
        length(key) between 1 and 200 and typeof(running) = 'integer'
        and tokens between -1000000000 and 1000000000
        and typeof(refilled_at) = 'integer' and refilled_at between 0 and 221845391999999999
    )
) without rowid;

create index if not exists reltask_limit_keys_of_limits on reltask_limit_keys (name, key);

-- A job with a limit is new, or can be claimed again, or at another time: look at its key then.
create trigger if not exists reltask_jobs_are_marked after insert on reltask_jobs
when new.limit_key is not null and new.due_at < 221845305600000000
  and new.locked_by is null and new.paused_at is null and new.dead_at is null
begin
    insert into reltask_marks (queue, task, at, kind, name)
    values (new.queue, new.task, new.due_at, 'limit', new.limit_key);
end;

-- Claims that move a job from one of its keys to another leave a mark themselves, if there is need.
create trigger if not exists reltask_jobs_are_marked_again after update on reltask_jobs
when new.limit_key is not null and new.due_at < 221845305600000000
  and new.locked_by is null and new.paused_at is null and new.dead_at is null
  and (
      old.locked_by is not null or old.paused_at is not null or old.dead_at is not null
      or new.due_at <> old.due_at or new.queue <> old.queue or new.priority <> old.priority
      or new.limits is not old.limits
      or new.limits is null and new.limit_key is not old.limit_key
  )
begin
    insert into reltask_marks (queue, task, at, kind, name)
    values (new.queue, new.task, new.due_at, 'limit', new.limit_key);
end;

-- A claim ends: its places are free. The mark is due at once, by whatever clock the claim was made.
create trigger if not exists reltask_jobs_free_their_places after update on reltask_jobs
when old.locked_by is not null
  and (
      old.limit_key is not null and new.locked_by is null
      or old.limits is not new.limits
      or old.limits is null and old.limit_key is not new.limit_key
  )
begin
    insert into reltask_marks (task, at, kind, name, freed)
    select 'limit', old.locked_at, 'limit', taken.value, 1
    from json_each(coalesce(old.limits, json_array(old.limit_key))) as taken
    where taken.value is not null;
end;

create trigger if not exists reltask_jobs_free_their_places_at_last after delete on reltask_jobs
when old.locked_by is not null and old.limit_key is not null
begin
    insert into reltask_marks (task, at, kind, name, freed)
    select 'limit', old.locked_at, 'limit', taken.value, 1
    from json_each(coalesce(old.limits, json_array(old.limit_key))) as taken;
end;

-- A claimed job gets other keys: it takes a place of each, whether there is one or not.
create trigger if not exists reltask_jobs_take_other_places after update on reltask_jobs
when old.locked_by is not null and new.locked_by is not null
  and (
      old.limits is not new.limits
      or old.limits is null and old.limit_key is not new.limit_key
  )
begin
    insert into reltask_marks (task, at, kind, name, freed)
    select 'limit', new.locked_at, 'limit', taken.value, -1
    from json_each(coalesce(new.limits, json_array(new.limit_key))) as taken
    where taken.value is not null;
end;

-- Last, the version that this script leads to, and the oldest that may run on it. Newer ones stay.
insert into reltask_meta (only_row, schema_version, oldest_version) values (1, 6, 6)
on conflict (only_row) do update
set schema_version = excluded.schema_version, oldest_version = excluded.oldest_version,
    migrated_at = excluded.migrated_at
where reltask_meta.schema_version < excluded.schema_version;
