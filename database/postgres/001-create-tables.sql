-- reltask on PostgreSQL 14 or newer. Run it as the owner of the schema. It can be run again: an
-- existing table stays as it is.
--
-- Version 1; code of version 1 or newer may run on it.
--
-- jobs     one row per job: what to run, when it is due, and which worker holds it
-- runs     the ledger: one row per ended run; (job_id, slot_no) ends at most once, by constraint
-- workers  the workers, until when each is alive, and the tasks that it knows
-- meta     the version of this schema, and the oldest whose code may run on it

create schema if not exists reltask;

create table if not exists reltask.meta (
    only_row       boolean     primary key default true check (only_row),
    schema_version integer     not null,
    oldest_version integer     not null,                -- code of an older version must not start
    migrated_at    timestamptz not null default clock_timestamp(),
    shard          smallint    check (shard between 0 and 4095),    -- null: a whole install
    draining       boolean     not null default false,  -- a shard that gets no new jobs
    partition_days smallint    check (partition_days between 1 and 366) -- null: one ledger table
);

-- Whether the keys of a job's limits are as they should be. A function, because PostgreSQL reads
-- the text of every constraint of a table in every statement that writes to it. Written out there,
-- it would be a part of the cost of every enqueue, also of jobs without limits.
create or replace function reltask.limits_fit(limit_key text, limits text[]) returns boolean
    language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
    return octet_length(limit_key) between 1 and 800
       and limit_key !~ '[\u0001-\u001f\u007f-\u009f]'
       and (
           limits is null or coalesce(
               limit_key = any (limits) and cardinality(limits) between 2 and 8
               and array_position(limits, null) is null and pg_column_size(limits) <= 8000,
               false
           )
       );
end
$$;

create table if not exists reltask.jobs (
    id               uuid        primary key,
    task             text        not null,
    key              text,                              -- names one schedule or one-off of a task
    queue            text        not null default 'default',
    priority         smallint    not null default 5,    -- 0 first, 9 last
    args             json        not null default '{}',
    headers          json,                              -- travels beside args; null: none
    schedule         text,                              -- null: a one-off, deleted at its end
    declaration      text,                              -- hash of the declaration in code
    app_version      text,                              -- of the app that declared it
    max_attempts     integer,                           -- null: no limit
    lock_timeout_ms  bigint,                            -- null: the worker's setting
    created_at       timestamptz not null default clock_timestamp(),

    -- Limits: see 006.
    limit_key        text,                              -- where it waits for room; null: no limit
    limits           text[],                            -- all its keys; null: that one alone

    -- The slot.
    slot_no          bigint      not null default 1,
    next_run_time    timestamptz not null,              -- nominal; changes when the slot ends
    not_before       timestamptz,                       -- set by backoff, snooze and run-now
    due_at           timestamptz not null
                     generated always as (coalesce(not_before, next_run_time)) stored,
    slot_started_at  timestamptz,                       -- first claim: "every" counts from it
    last_run_time    timestamptz,
    attempt          integer     not null default 0,    -- claims, less those given back
    paused_at        timestamptz,
    dead_at          timestamptz,
    losses           integer     not null default 0,    -- runs in a row that lost their lock
    isolated         boolean     not null default false, -- two or more in a row
    cancel_slot      bigint,                            -- equal to slot_no: this slot is cancelled

    -- Durable functions: see 005.
    suspended        boolean     not null default false, -- waits; cleared by the claim
    wake_seq         bigint      not null default 0,    -- marks that were folded
    steps            integer     not null default 0,    -- recorded in this slot
    parent_id        uuid,                              -- the job that waits for this one's end
    parent_slot      bigint,
    parent_step      text,
    parent_nth       integer,                           -- place among the step's children

    -- The claim.
    locked_by        text,
    locked_at        timestamptz,
    heartbeat_at     timestamptz,
    claim_timeout_ms bigint,                            -- lock timeout, copied at the claim
    lock_expires_at  timestamptz,                       -- heartbeat_at + claim_timeout_ms
    claim_token      uuid,
    fence            bigint      not null default 0,
    progress         json,

    constraint jobs_lock_is_whole check (
        (locked_by is null) = (locked_at is null)
        and (locked_by is null) = (heartbeat_at is null)
        and (locked_by is null) = (lock_expires_at is null)
    ),
    constraint jobs_parent_is_whole check (
        (parent_id, parent_slot, parent_step, parent_nth) is null
        or (parent_id, parent_slot, parent_step, parent_nth) is not null
    ),

    -- A value that a worker could not read or compute with would stop the claims beside its own.
    -- Names have no control characters: they are printed. Times are finite, from 1970 to 8999; a
    -- lock may end a hundred years later. The size of args is that of the largest setting of
    -- limits.arguments; it is the stored size, so that an update need not read a long value.
    constraint jobs_names_fit check (
        octet_length(task) between 1 and 2000 and octet_length(queue) between 1 and 2000
        and octet_length(key) between 1 and 2000 and octet_length(schedule) <= 10000
        and octet_length(declaration) <= 2000 and octet_length(app_version) <= 2000
    ),
    constraint jobs_names_are_printable check (
        task || queue || coalesce(key, '') || coalesce(app_version, '')
            !~ '[\u0001-\u001f\u007f-\u009f]'
    ),
    constraint jobs_limits_fit check (
        limit_key is null and limits is null or reltask.limits_fit(limit_key, limits)
    ),
    constraint jobs_args_fit check (pg_catalog.pg_column_size(args) <= 16000004),
    constraint jobs_headers_fit check (
        json_typeof(headers) = 'object' and pg_catalog.pg_column_size(headers) <= 16000004
    ),
    constraint jobs_progress_fits check (pg_catalog.pg_column_size(progress) <= 16000004),
    constraint jobs_priority_in_range check (priority between 0 and 9),
    constraint jobs_max_attempts_in_range check (max_attempts > 0),
    constraint jobs_lock_timeout_in_range check (lock_timeout_ms between 500 and 3155760000000),
    constraint jobs_next_run_time_in_range check (
        next_run_time >= timestamptz '1970-01-01 00:00:00+00'
        and next_run_time < timestamptz '9000-01-01 00:00:00+00'
    ),
    constraint jobs_not_before_in_range check (
        not_before >= timestamptz '1970-01-01 00:00:00+00'
        and not_before < timestamptz '9000-01-01 00:00:00+00'
    ),
    constraint jobs_times_in_range check (
        least(created_at, slot_started_at, last_run_time, paused_at, dead_at, locked_at)
            >= timestamptz '1970-01-01 00:00:00+00'
        and greatest(created_at, slot_started_at, last_run_time, paused_at, dead_at, locked_at)
            < timestamptz '9000-01-01 00:00:00+00'
    ),
    constraint jobs_claim_in_range check (
        claim_timeout_ms between 1 and 3155760000001
        and least(heartbeat_at, lock_expires_at) >= timestamptz '1970-01-01 00:00:00+00'
        and greatest(heartbeat_at, lock_expires_at) < timestamptz '9101-01-01 00:00:00+00'
    ),
    constraint jobs_counts_in_range check (
        slot_no between 0 and 1000000000000000000 and fence between 0 and 1000000000000000000
        and attempt between 0 and 2000000000 and losses between 0 and 2000000000
        and cancel_slot between 0 and 1000000000000000000
    )
) with (
    -- Rows are claimed, renewed and deleted often: leave room for updates in place, vacuum early.
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Two schedules, or two one-offs with a key, of one task never share a key.
create unique index if not exists jobs_name on reltask.jobs (task, coalesce(key, ''))
    where schedule is not null or key is not null;

-- For claims: one lane per (isolated, queue, task, priority), in order of due time.
create index if not exists jobs_claimable
    on reltask.jobs (isolated, queue, task, priority, due_at)
    where locked_by is null and paused_at is null and dead_at is null and limit_key is null;

-- For claims of jobs with a limit: the same lanes, for each key by itself. A function that resumes
-- needs no token, so it has lanes of its own.
create index if not exists jobs_limited
    on reltask.jobs (limit_key, isolated, suspended, queue, task, priority, due_at)
    where locked_by is null and paused_at is null and dead_at is null and limit_key is not null;

-- For lists of jobs with a limit, whatever their key: by queue and task, in order of due time.
create index if not exists jobs_limited_due on reltask.jobs (queue, task, due_at)
    where locked_by is null and paused_at is null and dead_at is null and limit_key is not null;

-- The claimed jobs with a limit, to count them again.
create index if not exists jobs_holding on reltask.jobs (limit_key)
    where locked_by is not null and limit_key is not null;

-- The next lock expiry, and all claimed rows. An index by owner would cost every claim and
-- heartbeat.
create index if not exists jobs_expiring on reltask.jobs (lock_expires_at)
    where locked_by is not null;

-- The children of a job, by its slots.
create index if not exists jobs_children on reltask.jobs (parent_id, parent_slot)
    where parent_id is not null;

-- For lists of dead jobs.
create index if not exists jobs_dead on reltask.jobs (dead_at) where dead_at is not null;

-- For lists of paused, suspended and recurring jobs. A job that is none of these pays nothing.
create index if not exists jobs_paused on reltask.jobs (paused_at) where paused_at is not null;
create index if not exists jobs_suspended on reltask.jobs (due_at) where suspended;
create index if not exists jobs_recurring on reltask.jobs (task, id) where schedule is not null;

create table if not exists reltask.runs (
    job_id       uuid        not null,
    fence        bigint      not null,
    slot_no      bigint      not null,
    task         text        not null,
    key          text,
    queue        text        not null,
    worker       text,                                  -- null: skipped or discarded
    attempt      integer     not null,
    nominal_time timestamptz not null,
    due_at       timestamptz not null,
    claimed_at   timestamptz,
    finished_at  timestamptz not null,
    outcome      text        not null check (outcome in (
        'succeeded', 'cancelled', 'skipped', 'failed', 'snoozed', 'suspended', 'released',
        'abandoned', 'lost', 'discarded'
    )),
    error        text,
    result       json,
    steps        integer,                               -- that its slot had recorded; null: none
    ends_job     boolean     not null default false,    -- the job's row was removed with it
    priority     smallint,                              -- of a job that ended, and what it was
    args         json,                                  -- given, so that it can be run again; null:
    headers      json,                                  -- it is not kept
    primary key (job_id, fence),

    constraint runs_names_fit check (
        octet_length(task) <= 2000 and octet_length(queue) <= 2000
        and octet_length(key) <= 2000 and octet_length(worker) <= 2000
    ),
    constraint runs_names_are_printable check (
        task || queue || coalesce(key, '') || coalesce(worker, '')
            !~ '[\u0001-\u001f\u007f-\u009f]'
    ),
    constraint runs_texts_fit check (
        pg_catalog.pg_column_size(error) <= 16000004
        and pg_catalog.pg_column_size(result) <= 16000004
        and pg_catalog.pg_column_size(args) <= 16000004
        and pg_catalog.pg_column_size(headers) <= 16000004
    ),
    -- The other times are copied from the job, whatever they are: its failure must be recorded.
    constraint runs_finished_at_in_range check (
        finished_at >= timestamptz '1970-01-01 00:00:00+00'
        and finished_at < timestamptz '9000-01-01 00:00:00+00'
    )
);

-- Each slot ends exactly once.
create unique index if not exists runs_slot_ends_once on reltask.runs (job_id, slot_no)
    where outcome in ('succeeded', 'cancelled', 'skipped', 'discarded');

create index if not exists runs_finished on reltask.runs (finished_at);

create table if not exists reltask.workers (
    id           text        primary key,
    host         text        not null,
    pid          integer     not null,
    version      text        not null,
    app_version  text,
    queues       json        not null,
    tasks        json        not null,
    concurrency  integer     not null,
    started_at   timestamptz not null,
    heartbeat_at timestamptz not null,
    alive_until  timestamptz not null,
    idle         boolean     not null default false,    -- looked in vain, and has not filled since
    stopped_at   timestamptz,

    constraint workers_names_fit check (
        octet_length(id) between 1 and 2000 and octet_length(host) <= 2000
        and octet_length(version) <= 2000 and octet_length(app_version) <= 2000
    ),
    constraint workers_names_are_printable check (
        id || host || version || coalesce(app_version, '') !~ '[\u0001-\u001f\u007f-\u009f]'
    ),
    constraint workers_lists_are_lists check (
        json_typeof(queues) = 'array' and json_typeof(tasks) = 'array'
        and pg_catalog.pg_column_size(queues) <= 16000004
        and pg_catalog.pg_column_size(tasks) <= 16000004
    ),
    constraint workers_times_in_range check (
        least(started_at, heartbeat_at, alive_until, stopped_at)
            >= timestamptz '1970-01-01 00:00:00+00'
        and greatest(started_at, heartbeat_at, alive_until, stopped_at)
            < timestamptz '9101-01-01 00:00:00+00'
    )
);

-- A job that has ended is not inserted again by any user: the ledger knows its id. One look
-- per statement, and one seek per new row.
create or replace function reltask.refuse_ended_jobs() returns trigger language plpgsql as $$
begin
    if exists (
        select
        from added
        cross join lateral (
            select from reltask.runs as run where run.job_id = added.id limit 1
        ) as known
    ) then
        raise unique_violation using
            message = 'a job with this id has ended, or was claimed before',
            schema = 'reltask', table = 'jobs', constraint = 'jobs_id_is_new';
    end if;
    return null;
end
$$;

create or replace trigger jobs_id_is_new after insert on reltask.jobs
    referencing new table as added
    for each statement execute function reltask.refuse_ended_jobs();

-- Partitions of the ledger, for large ones: docs/scaling.md says when. Nothing is divided before
-- `reltask migrate --partition-ledger DAYS`. An id begins with the time at which it was made. So a
-- range of ids is a range of times, and both unique indexes keep their meaning, because they begin
-- with the id.
--
--     runs_before      the ids from before the ledger was divided
--     runs_20261116    the ids of some days, from this one on
--     runs_default     all other ids, and runs that outlived their partition: a schedule that is
--                      still alive has an old id

-- The least id that can be made at this time.
create or replace function reltask.first_id_at(at timestamptz) returns uuid
language sql immutable set search_path = pg_catalog as $$
    select rpad(lpad(to_hex(floor(extract(epoch from at) * 1000)::bigint), 12, '0'), 32, '0')::uuid
$$;

-- Divide the ledger, or change the length of later partitions. Only its owner can. It waits for the
-- sessions that use the ledger, and they wait while it reads the rows that there are. The rights to
-- the ledger and its policies stay.
create or replace function reltask.partition_ledger(days integer) returns void
language plpgsql set search_path = pg_catalog as $$
declare
    today bigint := extract(epoch from statement_timestamp())::bigint / 86400;
    boundary uuid := reltask.first_id_at(to_timestamp((today / days + 1) * days * 86400));
    command text;
begin
    lock table reltask.runs in access exclusive mode;
    update reltask.meta set partition_days = days;
    if exists (select from pg_partitioned_table where partrelid = 'reltask.runs'::regclass) then
        return;
    end if;

    alter table reltask.runs rename to runs_before;
    alter index reltask.runs_pkey rename to runs_before_pkey;
    alter index reltask.runs_slot_ends_once rename to runs_before_slot_ends_once;
    alter index reltask.runs_finished rename to runs_before_finished;
    create table reltask.runs (like reltask.runs_before including defaults including constraints)
        partition by range (job_id);
    alter table reltask.runs add primary key (job_id, fence);
    create unique index runs_slot_ends_once on reltask.runs (job_id, slot_no)
        where outcome in ('succeeded', 'cancelled', 'skipped', 'discarded');
    create index runs_finished on reltask.runs (finished_at);
    create table reltask.runs_default partition of reltask.runs default;
    with later as (
        delete from reltask.runs_before as run where run.job_id >= boundary returning run.*
    )
    insert into reltask.runs select later.* from later;
    execute format(
        'alter table reltask.runs attach partition reltask.runs_before'
        ' for values from (minvalue) to (%L)',
        boundary
    );

    for command in
        with before as (
            select oid, relowner, relacl, relrowsecurity
            from pg_class where oid = 'reltask.runs_before'::regclass
        ),
        granted as (
            select entry.grantee, entry.privilege_type as privilege
            from before cross join aclexplode(before.relacl) as entry
            where entry.grantee <> before.relowner
            union all
            select entry.grantee, format('%s (%I)', entry.privilege_type, attribute.attname)
            from before
            inner join pg_attribute as attribute on attribute.attrelid = before.oid
            cross join aclexplode(attribute.attacl) as entry
        )
        select format('alter table reltask.runs owner to %I', pg_get_userbyid(relowner)) from before
        union all
        select format('alter table reltask.runs_default owner to %I', pg_get_userbyid(relowner))
        from before
        union all
        select 'alter table reltask.runs enable row level security' from before where relrowsecurity
        union all
        select format(
            'grant %s on reltask.runs to %s', privilege,
            case grantee when 0 then 'public' else format('%I', pg_get_userbyid(grantee)) end
        )
        from granted
        union all
        select concat(
            format('create policy %I on reltask.runs for %s', policyname, cmd),
            ' to ' || (
                select string_agg(
                    case role when 'public' then role::text else format('%I', role) end, ', '
                )
                from unnest(roles) as role
            ),
            ' using (' || qual || ')', ' with check (' || with_check || ')'
        )
        from pg_policies
        where schemaname = 'reltask' and tablename = 'runs_before'
    loop
        execute command;
    end loop;
end
$$;

-- Make the partitions of the days to come. One whose ids other rows have already, in runs_default
-- or in a partition of another length, is not made: those rows are pruned one by one.
create or replace function reltask.add_partitions(days bigint) returns void
language plpgsql set search_path = pg_catalog as $$
declare
    today bigint := extract(epoch from statement_timestamp())::bigint / 86400;
    day bigint;
    name text;
begin
    for day in
        select generate_series((today / days + 1) * days, (today / days + 3) * days, days)
    loop
        name := to_char(to_timestamp(day * 86400) at time zone 'utc', '"runs_"YYYYMMDD');
        continue when to_regclass('reltask.' || name) is not null;
        begin
            execute format(
                'create table reltask.%I partition of reltask.runs'
                ' for values from (%L) to (%L)',
                name, reltask.first_id_at(to_timestamp(day * 86400)),
                reltask.first_id_at(to_timestamp((day + days) * 86400))
            );
        exception when check_violation or invalid_object_definition then
            raise debug 'the ids of % are taken', name;
        end;
    end loop;
end
$$;

-- Drop the partitions whose ids are older than the cutoff. Runs in them that ended later move to
-- runs_default, unless they are many: then pruning goes on row by row. Returns the number of
-- dropped rows, as the statistics know it.
create or replace function reltask.drop_partitions(cutoff timestamptz) returns bigint
language plpgsql set search_path = pg_catalog as $$
declare
    part record;
    kept bigint;
    records text;
    dropped bigint := 0;
begin
    for part in
        select child.relname as name, greatest(child.reltuples, 0)::bigint as row_count
        from pg_inherits as inherited
        inner join pg_class as child on child.oid = inherited.inhrelid
        where inherited.inhparent = 'reltask.runs'::regclass
          and substring(pg_get_expr(child.relpartbound, child.oid) from $x$TO \('(.*)'\)$x$)::uuid
              <= reltask.first_id_at(cutoff)
    loop
        execute format(
            'select count(*)'
            ' from (select from reltask.%I where finished_at >= $1 limit 10001) as later',
            part.name
        ) into kept using cutoff;
        continue when kept > 10000;
        foreach records in array
            array['steps.job_id', 'signals.job_id', 'child_ends.parent_id']
        loop
            execute format(
                'delete from reltask.%I as record using reltask.%I as run'
                ' where run.steps is not null and run.finished_at < $1'
                ' and record.%I = run.job_id and record.slot_no = run.slot_no',
                split_part(records, '.', 1), part.name, split_part(records, '.', 2)
            ) using cutoff;
        end loop;
        execute format('alter table reltask.runs detach partition reltask.%I', part.name);
        execute format(
            'insert into reltask.runs select * from reltask.%I where finished_at >= $1', part.name
        ) using cutoff;
        execute format('drop table reltask.%I', part.name);
        dropped := dropped + part.row_count;
    end loop;
    return dropped;
end
$$;

-- What a worker calls, with the rights of the ledger's owner: nothing is dropped that a worker
-- could not delete. It gives up, and returns null, where a session uses the ledger for longer than
-- a moment: all others would wait behind it.
create or replace function reltask.renew_partitions(before timestamptz) returns bigint
language plpgsql security definer set search_path = pg_catalog set lock_timeout = '200ms' as $$
declare
    days bigint := (select partition_days from reltask.meta);
begin
    if days is null then
        return 0;
    end if;
    perform reltask.add_partitions(days);
    return reltask.drop_partitions(least(before, statement_timestamp() - interval '1 hour'));
exception when lock_not_available then
    return null;
end
$$;

revoke all on function
    reltask.partition_ledger(integer), reltask.add_partitions(bigint),
    reltask.drop_partitions(timestamptz), reltask.renew_partitions(timestamptz)
    from public;

-- Last, the version that this script leads to, and the oldest that may run on it. Newer ones stay.
insert into reltask.meta as meta (schema_version, oldest_version) values (1, 1)
on conflict (only_row) do update
set schema_version = excluded.schema_version, oldest_version = excluded.oldest_version,
    migrated_at = excluded.migrated_at
where meta.schema_version < excluded.schema_version;
