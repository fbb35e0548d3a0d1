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
    migrated_at    timestamptz not null default clock_timestamp()
);

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
    where locked_by is null and paused_at is null and dead_at is null;

-- The next lock expiry, and all claimed rows. An index by owner would cost every claim and
-- heartbeat.
create index if not exists jobs_expiring on reltask.jobs (lock_expires_at)
    where locked_by is not null;

-- The children of a job, by its slots.
create index if not exists jobs_children on reltask.jobs (parent_id, parent_slot)
    where parent_id is not null;

-- For lists of dead jobs.
create index if not exists jobs_dead on reltask.jobs (dead_at) where dead_at is not null;

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

-- Last, the version that this script leads to, and the oldest that may run on it. Newer ones stay.
insert into reltask.meta as meta (schema_version, oldest_version) values (1, 1)
on conflict (only_row) do update
set schema_version = excluded.schema_version, oldest_version = excluded.oldest_version,
    migrated_at = excluded.migrated_at
where meta.schema_version < excluded.schema_version;
