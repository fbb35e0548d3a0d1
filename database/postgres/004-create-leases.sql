-- Leases, metrics, and a mark for dead workers. Run as the owner of the schema; running it again changes nothing.
--
-- leases         one row per name: who leads, under which term, until when; the row stays, so that the term goes on
-- lease_waiters  who waits for which lease: nothing but a hint about when to try next
-- metrics        the ledger counted by minute and task; outlives the ledger's own rows
-- workers        gets dead_at: when somebody noticed that a worker gave no sign of life for as long as it had promised

create table if not exists reltask.leases (
    name         text        primary key,
    holder       text,                                  -- null: given back, free to take
    acquisition  uuid,                                  -- which of the holder's tries won it
    term         bigint      not null,                  -- grows by one at every acquisition
    acquired_at  timestamptz not null,
    heartbeat_at timestamptz not null,
    ttl_ms       bigint      not null check (ttl_ms > 0),
    expires_at   timestamptz not null,                  -- heartbeat_at + ttl_ms, or when it was given back
    metadata     json        not null default '{}',     -- what its holder publishes: last_run, items, errors, …

    constraint leases_holder_is_whole check ((holder is null) = (acquisition is null))
) with (fillfactor = 50);                               -- a beat every other second: let it be an update in place

create table if not exists reltask.lease_waiters (
    name          text        not null,                 -- of the lease, which may not exist yet
    holder        text        not null,
    waiting_until timestamptz not null,
    primary key (name, holder)
);

create table if not exists reltask.metrics (
    minute       timestamptz      not null,             -- in which the runs ended
    task         text             not null,
    succeeded    bigint           not null,
    failed       bigint           not null,             -- failed, lost and abandoned
    seconds      double precision not null,             -- sum of the durations, claim to end
    seconds_most double precision not null,
    late         double precision not null,             -- sum of the lateness, due time to claim
    late_most    double precision not null,
    primary key (minute, task)
);

alter table reltask.workers add column if not exists dead_at timestamptz;

-- Last: the version that this script leads to. A newer one stays.
insert into reltask.meta as meta (schema_version) values (4)
on conflict (only_row) do update
set schema_version = excluded.schema_version, migrated_at = excluded.migrated_at
where meta.schema_version < excluded.schema_version;
