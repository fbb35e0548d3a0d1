-- Leases, metrics, and a mark for dead workers. reltask runs it itself. It can be run again.
--
-- Version 4; code of version 4 or newer may run on it: no earlier one was released.
--
-- reltask_leases         one row per name: holder, term, expiry; never deleted, so its term grows
-- reltask_lease_waiters  which candidates wait for which lease: only a hint about the next try
-- reltask_metrics        the ledger counted by minute and task; kept longer than the ledger's rows
-- reltask_workers        gets dead_at: when it was noticed that alive_until had passed

create table if not exists reltask_leases (
    name         text    primary key,
    holder       text,                                  -- null: given back, free to take
    acquisition  text,                                  -- which of the holder's tries got it
    term         integer not null,                      -- grows by one at every acquisition
    acquired_at  integer not null,
    heartbeat_at integer not null,
    ttl_ms       integer not null,
    expires_at   integer not null,                      -- heartbeat_at + ttl_ms, or the release
    metadata     text    not null default '{}',         -- last_run, items, errors and others

    constraint leases_holder_is_whole check ((holder is null) = (acquisition is null)),
    constraint leases_names_are_printable check (
        name || coalesce(holder, '') not glob
            '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
    ),
    constraint leases_ttl_in_range check (
        typeof(ttl_ms) = 'integer' and ttl_ms between 1 and 3155760000000
    )
) without rowid;

create table if not exists reltask_lease_waiters (
    name          text    not null,                     -- of the lease, which may not exist yet
    holder        text    not null,
    waiting_until integer not null,
    primary key (name, holder)
) without rowid;

create table if not exists reltask_metrics (
    minute       integer not null,                      -- when the runs ended
    task         text    not null,
    succeeded    integer not null,
    failed       integer not null,                      -- failed, lost and abandoned
    seconds      real    not null,                      -- sum of durations, claim to end
    seconds_most real    not null,
    late         real    not null,                      -- sum of lateness, due time to claim
    late_most    real    not null,
    primary key (minute, task)
) without rowid;

-- SQLite cannot add a column "if not exists", so the few rows are copied into a table that has it.
-- Run again, this removes the marks of dead workers, until maintenance sets them again.
drop table if exists reltask_workers_with_dead_at;

create table reltask_workers_with_dead_at (
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
    dead_at      integer,

    constraint workers_names_are_printable check (
        id || host || version || coalesce(app_version, '') not glob
            '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
    ),
    constraint workers_lists_are_lists check (
        json_type(queues) = 'array' and json_type(tasks) = 'array'
    )
);

insert into reltask_workers_with_dead_at (
    id, host, pid, version, app_version, queues, tasks, concurrency, started_at, heartbeat_at,
    alive_until, idle, stopped_at
)
select id, host, pid, version, app_version, queues, tasks, concurrency, started_at, heartbeat_at,
       alive_until, idle, stopped_at
from reltask_workers;

drop table reltask_workers;

alter table reltask_workers_with_dead_at rename to reltask_workers;

-- Last, the version that this script leads to, and the oldest that may run on it. Newer ones stay.
insert into reltask_meta (only_row, schema_version, oldest_version) values (1, 4, 4)
on conflict (only_row) do update
set schema_version = excluded.schema_version, oldest_version = excluded.oldest_version,
    migrated_at = excluded.migrated_at
where reltask_meta.schema_version < excluded.schema_version;
