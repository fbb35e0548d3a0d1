-- Control: what people decide while workers run. Run it as the owner of the schema. It can be run
-- again: an existing table stays as it is.
--
-- Version 6; code of version 6 or newer may run on it: no earlier one was released.
--
-- pauses   queues and tasks of which nothing is claimed, with who paused them, when and why
-- actions  what operators did through the dashboard
-- keys     which job has the key of a unique task
-- limits   how many jobs may run at once, and start in a time; one row per declared limit
-- limit_keys  what is taken of a limit, one row per key: the limit's name, or name:value for a
--             limit that counts by a value
--
-- The bounds are those of the jobs: what a worker could not read or compute with is refused.

-- A row is inserted and deleted, never updated: a claim that skips a locked row must not take a
-- changed reason for the end of the pause.
create table if not exists reltask.pauses (
    kind      text        not null check (kind in ('queue', 'task')),
    name      text        not null,                     -- of the queue or the task
    reason    text,
    paused_by text        not null,                     -- a person or a program, as it says itself
    paused_at timestamptz not null,
    primary key (kind, name),

    constraint pauses_texts_fit check (
        octet_length(name) between 1 and 2000 and octet_length(reason) <= 2000
        and octet_length(paused_by) between 1 and 2000
    ),
    constraint pauses_texts_are_printable check (
        name || coalesce(reason, '') || paused_by !~ '[\u0001-\u001f\u007f-\u009f]'
    ),
    constraint pauses_paused_at_in_range check (
        paused_at >= timestamptz '1970-01-01 00:00:00+00'
        and paused_at < timestamptz '9000-01-01 00:00:00+00'
    )
);

-- What operators did through the dashboard: recorded before it is done, and completed afterwards.
create table if not exists reltask.actions (
    id      uuid        primary key,                    -- made by the dashboard
    at      timestamptz not null,
    actor   text        not null,                       -- as the application names the person
    action  text        not null,                       -- retry, cancel, run now, pause …
    target  text        not null,                       -- a job, a queue, a task, or a filter
    seen    text,                                       -- the fence or term that the page showed
    jobs    integer     not null,                       -- how many it was meant for
    outcome text,                                       -- null: it was begun, and may be done
    changed integer,                                    -- how many were changed

    constraint actions_texts_fit check (
        octet_length(actor) between 1 and 2000 and octet_length(action) between 1 and 2000
        and octet_length(target) <= 10000 and octet_length(seen) <= 2000
        and octet_length(outcome) <= 10000
    ),
    constraint actions_texts_are_printable check (
        actor || action || target || coalesce(seen, '') || coalesce(outcome, '')
            !~ '[\u0001-\u001f\u007f-\u009f]'
    ),
    constraint actions_counts_in_range check (jobs >= 0 and changed >= 0),
    constraint actions_at_in_range check (
        at >= timestamptz '1970-01-01 00:00:00+00'
        and at < timestamptz '9000-01-01 00:00:00+00'
    )
);

create index if not exists actions_latest on reltask.actions (at, id);

-- The keys of unique tasks. The primary key is the only constraint. A key is taken while its job is
-- there and not dead, and before `until`: the end of a job does not touch this table. A row whose
-- job is gone is taken over by the next job, or removed by the maintenance.
create table if not exists reltask.keys (
    task        text        not null,
    key         text        not null,                   -- hash of arguments
    job_id      uuid        not null,                   -- the job that has it, or had it last
    until       timestamptz,                            -- taken until then at least; null: no time
    until_start boolean     not null,                   -- free when the job's run begins
    primary key (task, key),

    constraint keys_names_fit check (
        octet_length(task) between 1 and 2000 and octet_length(key) between 1 and 2000
    ),
    constraint keys_names_are_printable check (task || key !~ '[\u0001-\u001f\u007f-\u009f]'),
    constraint keys_until_in_range check (
        until >= timestamptz '1970-01-01 00:00:00+00'
        and until < timestamptz '9101-01-01 00:00:00+00'
    )
);

-- A claim takes a place of each of the job's keys, and a token of those that have a rate. Only
-- claims write limit_keys. The end of a claim inserts a mark instead, because it may be part of a
-- transaction that stays open: the triggers below see every end, whichever statement makes it.
create table if not exists reltask.limits (
    name           text        primary key,
    running        integer,                             -- at once, per key; null: any number
    rate_count     integer,                             -- starts in rate_period, per key;
    rate_period_ms bigint,                              -- null: any number
    burst          integer,                             -- the most tokens that a key can have
    declaration    text        not null,                -- hash of the declaration in code
    app_version    text,                                -- of the app that declared it
    changed_at     timestamptz not null,                -- by a declaration or an operator

    constraint limits_names_fit check (
        octet_length(name) between 1 and 400 and strpos(name, ':') = 0
        and octet_length(declaration) <= 2000 and octet_length(app_version) <= 2000
    ),
    constraint limits_names_are_printable check (
        name || declaration || coalesce(app_version, '') !~ '[\u0001-\u001f\u007f-\u009f]'
    ),
    constraint limits_in_range check (
        running between 0 and 1000000 and rate_count between 1 and 1000000000
        and rate_period_ms between 1 and 3155760000000 and burst between 1 and 1000000000
    ),
    constraint limits_rate_is_whole check (
        (rate_count, rate_period_ms, burst) is null
        or (rate_count, rate_period_ms, burst) is not null
    ),
    constraint limits_changed_at_in_range check (
        changed_at >= timestamptz '1970-01-01 00:00:00+00'
        and changed_at < timestamptz '9000-01-01 00:00:00+00'
    )
);

create table if not exists reltask.limit_keys (
    key         text             primary key,
    name        text             not null,              -- of the limit
    running     integer          not null,              -- places taken, less marks that were folded
    tokens      double precision not null,              -- at refilled_at
    refilled_at timestamptz      not null,
    seq         bigint           not null default 0,    -- grows with every look at the key

    constraint limit_keys_names_fit check (
        octet_length(key) between 1 and 800 and octet_length(name) between 1 and 400
    ),
    constraint limit_keys_refilled_at_in_range check (
        refilled_at >= timestamptz '1970-01-01 00:00:00+00'
        and refilled_at < timestamptz '9000-01-01 00:00:00+00'
    ),
    constraint limit_keys_tokens_in_range check (
        tokens between -1000000000::double precision and 1000000000::double precision
    )
) with (
    -- Rows are written by every claim: leave room for updates in place, vacuum early.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

create index if not exists limit_keys_of_limits on reltask.limit_keys (name, key);

-- A job with a limit is new, or can be claimed again, or at another time: look at its key then.
create or replace function reltask.mark_waiting_job() returns trigger language plpgsql as $$
begin
    insert into reltask.marks (queue, task, at, kind, name)
    values (new.queue, new.task, new.due_at, 'limit', new.limit_key);
    return null;
end
$$;

-- A claim ends: its places are free. The mark is due at once, by whatever clock the claim was made.
create or replace function reltask.mark_freed_places() returns trigger language plpgsql as $$
begin
    insert into reltask.marks (task, at, kind, name, freed)
    select 'limit', old.locked_at, 'limit', taken.key, 1
    from pg_catalog.unnest(coalesce(old.limits, array[old.limit_key])) as taken (key)
    where taken.key is not null;
    return null;
end
$$;

-- A claimed job gets other keys: it takes a place of each, whether there is one or not.
create or replace function reltask.mark_taken_places() returns trigger language plpgsql as $$
begin
    insert into reltask.marks (task, at, kind, name, freed)
    select 'limit', new.locked_at, 'limit', taken.key, -1
    from pg_catalog.unnest(coalesce(new.limits, array[new.limit_key])) as taken (key)
    where taken.key is not null;
    return null;
end
$$;

-- Two statements, enqueue_limited.sql and complete_limited.sql, write marks themselves, one for
-- many jobs. They silence the trigger of what they do, and of nothing else, by a setting.
create or replace trigger jobs_are_marked after insert on reltask.jobs
    for each row
    when (
        new.limit_key is not null and new.due_at < timestamptz '8999-12-31 00:00:00+00'
        and new.locked_by is null and new.paused_at is null and new.dead_at is null
        and pg_catalog.current_setting('reltask.marked', true) is distinct from 'jobs'
    )
    execute function reltask.mark_waiting_job();

-- Claims that move a job from one of its keys to another leave a mark themselves, if there is need.
create or replace trigger jobs_are_marked_again after update on reltask.jobs
    for each row
    when (
        new.limit_key is not null and new.due_at < timestamptz '8999-12-31 00:00:00+00'
        and new.locked_by is null and new.paused_at is null and new.dead_at is null
        and (
            old.locked_by is not null or old.paused_at is not null or old.dead_at is not null
            or new.due_at <> old.due_at or new.queue <> old.queue or new.priority <> old.priority
            or new.limits::text is distinct from old.limits::text
            or new.limits is null and new.limit_key is distinct from old.limit_key
        )
    )
    execute function reltask.mark_waiting_job();

create or replace trigger jobs_free_their_places after update on reltask.jobs
    for each row
    when (
        old.locked_by is not null
        and (
            old.limit_key is not null and new.locked_by is null
            or old.limits::text is distinct from new.limits::text
            or old.limits is null and old.limit_key is distinct from new.limit_key
        )
    )
    execute function reltask.mark_freed_places();

create or replace trigger jobs_take_other_places after update on reltask.jobs
    for each row
    when (
        old.locked_by is not null and new.locked_by is not null
        and (
            old.limits::text is distinct from new.limits::text
            or old.limits is null and old.limit_key is distinct from new.limit_key
        )
    )
    execute function reltask.mark_taken_places();

create or replace trigger jobs_free_their_places_at_last after delete on reltask.jobs
    for each row
    when (
        old.locked_by is not null and old.limit_key is not null
        and pg_catalog.current_setting('reltask.marked', true) is distinct from 'ends'
    )
    execute function reltask.mark_freed_places();

-- Last, the version that this script leads to, and the oldest that may run on it. Newer ones stay.
insert into reltask.meta as meta (schema_version, oldest_version) values (6, 6)
on conflict (only_row) do update
set schema_version = excluded.schema_version, oldest_version = excluded.oldest_version,
    migrated_at = excluded.migrated_at
where meta.schema_version < excluded.schema_version;
