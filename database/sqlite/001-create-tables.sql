-- reltask on SQLite 3.35 or newer. reltask runs it itself. It can be run again: an existing table
-- stays as it is.
--
-- Version 1; code of version 1 or newer may run on it.
--
-- Times are microseconds since 1970-01-01 UTC. To read one: datetime(due_at / 1e6, 'unixepoch').
--
-- reltask_jobs     one row per job: what to run, when it is due, and which worker holds it
-- reltask_runs     the ledger: one row per ended run; (job_id, slot_no) ends at most once
-- reltask_workers  the workers, until when each is alive, and the tasks that it knows
-- reltask_meta     the version of this schema, and the oldest whose code may run on it

create table if not exists reltask_meta (
    only_row       integer primary key default 1 check (only_row = 1),
    schema_version integer not null,
    oldest_version integer not null,                    -- code of an older version must not start
    migrated_at    integer not null default (
        cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000
    ),
    shard          integer check (shard between 0 and 4095),        -- null: a whole install
    draining       integer not null default 0 check (draining in (0, 1))  -- gets no new jobs
);

create table if not exists reltask_jobs (
    id               text    primary key,
    task             text    not null,
    key              text,                              -- names one schedule or one-off of a task
    queue            text    not null default 'default',
    priority         integer not null default 5,        -- 0 first, 9 last
    args             text    not null default '{}',
    headers          text,                              -- travels beside args; null: none
    schedule         text,                              -- null: a one-off, deleted at its end
    declaration      text,                              -- hash of the declaration in code
    app_version      text,                              -- of the app that declared it
    max_attempts     integer,                           -- null: no limit
    lock_timeout_ms  integer,                           -- null: the worker's setting
    created_at       integer not null default (
        cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000
    ),

    -- Limits: see 006.
    limit_key        text,                              -- where it waits for room; null: no limit
    limits           text,                              -- all its keys, JSON; null: that one alone

    -- The slot.
    slot_no          integer not null default 1,
    next_run_time    integer not null,                  -- nominal; changes when the slot ends
    not_before       integer,                           -- set by backoff, snooze and run-now
    due_at           integer not null
                     generated always as (coalesce(not_before, next_run_time)) stored,
    slot_started_at  integer,                           -- first claim: "every" counts from it
    last_run_time    integer,
    attempt          integer not null default 0,        -- claims, less those given back
    paused_at        integer,
    dead_at          integer,
    losses           integer not null default 0,        -- runs in a row that lost their lock
    isolated         integer not null default 0,        -- two or more in a row
    cancel_slot      integer,                           -- equal to slot_no: this slot is cancelled

    -- Durable functions: see 005.
    suspended        integer not null default 0,        -- waits; cleared by the claim
    wake_seq         integer not null default 0,        -- marks that were folded
    steps            integer not null default 0,        -- recorded in this slot
    parent_id        text,                              -- the job that waits for this one's end
    parent_slot      integer,
    parent_step      text,
    parent_nth       integer,                           -- place among the step's children

    -- The claim.
    locked_by        text,
    locked_at        integer,
    heartbeat_at     integer,
    claim_timeout_ms integer,                           -- lock timeout, copied at the claim
    lock_expires_at  integer,                           -- heartbeat_at + claim_timeout_ms
    claim_token      text,
    fence            integer not null default 0,
    progress         text,

    constraint jobs_lock_is_whole check (
        (locked_by is null) = (locked_at is null)
        and (locked_by is null) = (heartbeat_at is null)
        and (locked_by is null) = (lock_expires_at is null)
    ),
    constraint jobs_parent_is_whole check (
        (parent_id is null) = (parent_slot is null)
        and (parent_id is null) = (parent_step is null)
        and (parent_id is null) = (parent_nth is null)
    ),

    -- A value that a worker could not read or compute with would stop the claims beside its own.
    -- Names have no control characters: they are printed. The size of args is that of the largest
    -- setting of limits.arguments. Times are whole numbers, from 1970 to 8999; a lock may end a
    -- hundred years later.
    constraint jobs_limits_fit check (
        length(limit_key) between 1 and 200
        and (
            limits is null or coalesce(
                limit_key is not null and json_type(limits) = 'array'
                and json_array_length(limits) between 2 and 8 and length(limits) <= 8000,
                0
            )
        )
    ),
    constraint jobs_id_is_a_uuid check (
        id glob '????????-????-????-????-????????????'
        and length(replace(id, '-', '')) = 32 and replace(id, '-', '') not glob '*[^0-9a-f]*'
    ),
    constraint jobs_names_fit check (
        length(task) between 1 and 2000 and length(queue) between 1 and 2000
        and length(key) between 1 and 2000 and length(schedule) <= 10000
        and length(declaration) <= 2000 and length(app_version) <= 2000
    ),
    constraint jobs_names_are_printable check (
        task || queue || coalesce(key, '') || coalesce(app_version, '') not glob
            '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
    ),
    constraint jobs_args_are_json check (json_valid(args)),
    constraint jobs_args_fit check (length(cast(args as blob)) <= 16000000),
    constraint jobs_headers_fit check (
        json_type(headers) = 'object' and length(cast(headers as blob)) <= 16000000
    ),
    constraint jobs_progress_fits check (length(cast(progress as blob)) <= 16000000),
    constraint jobs_priority_in_range check (
        typeof(priority) = 'integer' and priority between 0 and 9
    ),
    constraint jobs_max_attempts_in_range check (
        typeof(max_attempts) in ('integer', 'null') and max_attempts between 1 and 2147483647
    ),
    constraint jobs_lock_timeout_in_range check (
        typeof(lock_timeout_ms) in ('integer', 'null')
        and lock_timeout_ms between 500 and 3155760000000
    ),
    constraint jobs_next_run_time_in_range check (
        typeof(next_run_time) = 'integer' and next_run_time between 0 and 221845391999999999
    ),
    constraint jobs_not_before_in_range check (
        typeof(not_before) in ('integer', 'null')
        and not_before between 0 and 221845391999999999
    ),
    constraint jobs_created_at_in_range check (
        typeof(created_at) in ('integer', 'null')
        and created_at between 0 and 221845391999999999
    ),
    constraint jobs_slot_started_at_in_range check (
        typeof(slot_started_at) in ('integer', 'null')
        and slot_started_at between 0 and 221845391999999999
    ),
    constraint jobs_last_run_time_in_range check (
        typeof(last_run_time) in ('integer', 'null')
        and last_run_time between 0 and 221845391999999999
    ),
    constraint jobs_paused_at_in_range check (
        typeof(paused_at) in ('integer', 'null')
        and paused_at between 0 and 221845391999999999
    ),
    constraint jobs_dead_at_in_range check (
        typeof(dead_at) in ('integer', 'null')
        and dead_at between 0 and 221845391999999999
    ),
    constraint jobs_locked_at_in_range check (
        typeof(locked_at) in ('integer', 'null')
        and locked_at between 0 and 221845391999999999
    ),
    constraint jobs_heartbeat_at_in_range check (
        typeof(heartbeat_at) in ('integer', 'null')
        and heartbeat_at between 0 and 221845391999999999
    ),
    constraint jobs_lock_expires_at_in_range check (
        typeof(lock_expires_at) in ('integer', 'null')
        and lock_expires_at between 0 and 225032601599999999
    ),
    constraint jobs_claim_timeout_in_range check (
        typeof(claim_timeout_ms) in ('integer', 'null')
        and claim_timeout_ms between 1 and 3155760000001
    ),
    constraint jobs_counts_in_range check (
        typeof(slot_no) = 'integer' and slot_no between 0 and 1000000000000000000
        and typeof(fence) = 'integer' and fence between 0 and 1000000000000000000
        and typeof(attempt) = 'integer' and attempt between 0 and 2000000000
        and typeof(losses) = 'integer' and losses between 0 and 2000000000
        and isolated in (0, 1) and suspended in (0, 1)
        and typeof(cancel_slot) in ('integer', 'null')
        and cancel_slot between 0 and 1000000000000000000
    )
);

-- Two schedules, or two one-offs with a key, of one task never share a key.
create unique index if not exists reltask_jobs_name on reltask_jobs (task, coalesce(key, ''))
    where schedule is not null or key is not null;

-- For claims: one lane per (isolated, queue, task, priority), in order of due time.
create index if not exists reltask_jobs_claimable
    on reltask_jobs (isolated, queue, task, priority, due_at)
    where locked_by is null and paused_at is null and dead_at is null and limit_key is null;

-- For claims of jobs with a limit: the same lanes, for each key by itself. A function that resumes
-- needs no token, so it has lanes of its own.
create index if not exists reltask_jobs_limited
    on reltask_jobs (limit_key, isolated, suspended, queue, task, priority, due_at)
    where locked_by is null and paused_at is null and dead_at is null and limit_key is not null;

-- For lists of jobs with a limit, whatever their key: by queue and task, in order of due time.
create index if not exists reltask_jobs_limited_due on reltask_jobs (queue, task, due_at)
    where locked_by is null and paused_at is null and dead_at is null and limit_key is not null;

-- The claimed jobs with a limit, to count them again.
create index if not exists reltask_jobs_holding on reltask_jobs (limit_key)
    where locked_by is not null and limit_key is not null;

-- The next lock expiry, and the jobs that one worker holds.
create index if not exists reltask_jobs_expiring on reltask_jobs (lock_expires_at)
    where locked_by is not null;
create index if not exists reltask_jobs_held on reltask_jobs (locked_by)
    where locked_by is not null;

-- The children of a job. A dead one has a parent only inside the transaction that tells it so.
create index if not exists reltask_jobs_children on reltask_jobs (parent_id)
    where parent_id is not null;
create index if not exists reltask_jobs_dead_children on reltask_jobs (parent_id)
    where dead_at is not null and parent_id is not null;

-- For lists of dead jobs.
create index if not exists reltask_jobs_dead on reltask_jobs (dead_at) where dead_at is not null;

-- For lists of paused, suspended and recurring jobs. A job that is none of these pays nothing.
create index if not exists reltask_jobs_paused on reltask_jobs (paused_at)
    where paused_at is not null;
create index if not exists reltask_jobs_suspended on reltask_jobs (due_at) where suspended;
create index if not exists reltask_jobs_recurring on reltask_jobs (task, id)
    where schedule is not null;

create table if not exists reltask_runs (
    job_id       text    not null,
    fence        integer not null,
    slot_no      integer not null,
    task         text    not null,
    key          text,
    queue        text    not null,
    worker       text,                                  -- null: skipped or discarded
    attempt      integer not null,
    nominal_time integer not null,
    due_at       integer not null,
    claimed_at   integer,
    finished_at  integer not null,
    outcome      text    not null check (outcome in (
        'succeeded', 'cancelled', 'skipped', 'failed', 'snoozed', 'suspended', 'released',
        'abandoned', 'lost', 'discarded'
    )),
    error        text,
    result       text,
    steps        integer,                               -- that its slot had recorded; null: none
    ends_job     integer not null default 0,            -- the job's row was removed with it
    priority     integer,                               -- of a job that ended, and what it was
    args         text,                                  -- given, so that it can be run again; null:
    headers      text,                                  -- it is not kept
    primary key (job_id, fence),

    constraint runs_names_are_printable check (
        task || queue || coalesce(key, '') || coalesce(worker, '') not glob
            '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
    )
) without rowid;

-- Each slot ends exactly once.
create unique index if not exists reltask_runs_slot_ends_once on reltask_runs (job_id, slot_no)
    where outcome in ('succeeded', 'cancelled', 'skipped', 'discarded');

create index if not exists reltask_runs_finished on reltask_runs (finished_at);

create table if not exists reltask_workers (
    id           text    primary key,
    host         text    not null,
    pid          integer not null,
    version      text    not null,
    app_version  text,
    queues       text    not null,
    tasks        text    not null,
    concurrency  integer not null,
    started_at   integer not null,
    heartbeat_at integer not null,
    alive_until  integer not null,
    idle         integer not null default 0,            -- looked in vain, and has not filled since
    stopped_at   integer,

    constraint workers_names_are_printable check (
        id || host || version || coalesce(app_version, '') not glob
            '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
    ),
    constraint workers_lists_are_lists check (
        json_type(queues) = 'array' and json_type(tasks) = 'array'
    )
);

-- Last, the version that this script leads to, and the oldest that may run on it. Newer ones stay.
insert into reltask_meta (only_row, schema_version, oldest_version) values (1, 1, 1)
on conflict do nothing;
