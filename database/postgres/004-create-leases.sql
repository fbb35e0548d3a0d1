-- Leases, metrics, and a mark for dead workers. Run it as the owner of the schema. It can be run
-- again: an existing table stays as it is.
--
-- Version 4; code of version 4 or newer may run on it: no earlier one was released.
--
-- leases         one row per name: holder, term, expiry; never deleted, so that the term grows
-- lease_waiters  which candidates wait for which lease: only a hint about the next try
-- metrics        the ledger counted by minute and task; kept longer than the ledger's rows
-- workers        gets dead_at: when it was noticed that alive_until had passed

create table if not exists reltask.leases (
    name         text        primary key,
    holder       text,                                  -- null: given back, free to take
    acquisition  uuid,                                  -- which of the holder's tries got it
    term         bigint      not null,                  -- grows by one at every acquisition
    acquired_at  timestamptz not null,
    heartbeat_at timestamptz not null,
    ttl_ms       bigint      not null,
    expires_at   timestamptz not null,                  -- heartbeat_at + ttl_ms, or the release
    metadata     json        not null default '{}',     -- last_run, items, errors and others

    constraint leases_holder_is_whole check ((holder is null) = (acquisition is null)),
    constraint leases_names_are_printable check (
        octet_length(name) between 1 and 2000 and octet_length(holder) <= 2000
        and name || coalesce(holder, '') !~ '[\u0001-\u001f\u007f-\u009f]'
    ),
    constraint leases_term_in_range check (term between 0 and 1000000000000000000),
    constraint leases_ttl_in_range check (ttl_ms between 1 and 3155760000000),
    constraint leases_metadata_fit check (pg_catalog.pg_column_size(metadata) <= 16000004),
    constraint leases_times_in_range check (
        least(acquired_at, heartbeat_at, expires_at) >= timestamptz '1970-01-01 00:00:00+00'
        and greatest(acquired_at, heartbeat_at, expires_at)
            < timestamptz '9101-01-01 00:00:00+00'
    )
) with (fillfactor = 50);                               -- heartbeats are updates in place

create table if not exists reltask.lease_waiters (
    name          text        not null,                 -- of the lease, which may not exist yet
    holder        text        not null,
    waiting_until timestamptz not null,
    primary key (name, holder),

    constraint lease_waiters_names_are_printable check (
        octet_length(name) <= 2000 and octet_length(holder) <= 2000
        and name || holder !~ '[\u0001-\u001f\u007f-\u009f]'
    ),
    constraint lease_waiters_times_in_range check (
        waiting_until >= timestamptz '1970-01-01 00:00:00+00'
        and waiting_until < timestamptz '9101-01-01 00:00:00+00'
    )
);

create table if not exists reltask.metrics (
    minute       timestamptz      not null,             -- when the runs ended
    task         text             not null,
    succeeded    bigint           not null,
    failed       bigint           not null,             -- failed, lost and abandoned
    seconds      double precision not null,             -- sum of durations, claim to end
    seconds_most double precision not null,
    late         double precision not null,             -- sum of lateness, due time to claim
    late_most    double precision not null,
    primary key (minute, task),

    constraint metrics_task_is_printable check (
        octet_length(task) <= 2000 and task !~ '[\u0001-\u001f\u007f-\u009f]'
    ),
    constraint metrics_minute_in_range check (
        minute >= timestamptz '1970-01-01 00:00:00+00'
        and minute < timestamptz '9000-01-01 00:00:00+00'
    ),
    constraint metrics_counts_in_range check (succeeded >= 0 and failed >= 0)
);

alter table reltask.workers add column if not exists dead_at timestamptz
    constraint workers_dead_at_in_range check (
        dead_at >= timestamptz '1970-01-01 00:00:00+00'
        and dead_at < timestamptz '9101-01-01 00:00:00+00'
    );

-- Last, the version that this script leads to, and the oldest that may run on it. Newer ones stay.
insert into reltask.meta as meta (schema_version, oldest_version) values (4, 4)
on conflict (only_row) do update
set schema_version = excluded.schema_version, oldest_version = excluded.oldest_version,
    migrated_at = excluded.migrated_at
where meta.schema_version < excluded.schema_version;
