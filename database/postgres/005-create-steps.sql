-- Durable functions. Run it as the owner of the schema. It can be run again: an existing table
-- stays as it is.
--
-- Version 5; code of version 5 or newer may run on it: no earlier one was released.
--
-- steps       what durable functions have recorded, one row per slot and name; kept as long as the
--             ledger rows of the slot
-- signals     what was sent to jobs; consumed ones stay until the slot ends, so that none counts
--             twice
-- child_ends  how the children of a step ended
-- marks       jobs that have to be looked at, because a signal came or a child ended; workers fold
--             them

create table if not exists reltask.steps (
    job_id      uuid        not null,
    slot_no     bigint      not null,
    name        text        not null,                   -- a repeated one ends with #2, #3 …
    kind        text        not null check (kind in (
        'step', 'transact', 'sleep', 'wait', 'run', 'start'
    )),
    state       text        not null check (state in ('waiting', 'done', 'failed')),
    value       json,                                   -- what the step returned
    error       text,                                   -- "Kind: message" of what it raised
    fingerprint text        not null,                   -- hash of function and arguments
    attempt     integer     not null,                   -- of the step itself
    fence       bigint      not null,                   -- of the run that wrote it
    started_at  timestamptz not null,
    recorded_at timestamptz not null,
    wake_at     timestamptz,                            -- waiting: until when; null: no limit
    signal      text,                                   -- wait: the name of the signal
    pending     integer     not null,                   -- run: children that have not ended
    primary key (job_id, slot_no, name)
);

-- Which steps wait for a signal: a mark finds them without reading the slot's other steps.
create index if not exists steps_waiting on reltask.steps (job_id, slot_no, signal)
    where state = 'waiting' and signal is not null;

create table if not exists reltask.signals (
    job_id      uuid        not null,
    slot_no     bigint      not null,
    name        text        not null,
    id          text        not null,                   -- the sender's: sent twice, it counts once
    seq         bigint      generated always as identity,
    value       json        not null,
    sent_at     timestamptz not null,
    consumed_by text,                                   -- the step; null: it waits
    primary key (job_id, slot_no, name, id)
);

-- For pruning what came after the end of its slot.
create index if not exists signals_sent on reltask.signals (sent_at);

create table if not exists reltask.child_ends (
    parent_id   uuid        not null,
    slot_no     bigint      not null,                   -- the parent's
    step        text        not null,
    nth         integer     not null,
    job_id      uuid        not null,                   -- the child
    outcome     text        not null check (outcome in (
        'succeeded', 'cancelled', 'discarded', 'failed'
    )),
    value       json,
    error       text,
    ended_at    timestamptz not null,
    primary key (parent_id, slot_no, step, nth)
);

create index if not exists child_ends_ended on reltask.child_ends (ended_at);

create table if not exists reltask.marks (
    at          timestamptz not null,
    seq         bigint      generated always as identity,
    kind        text        not null check (kind in ('signal', 'child')),
    job_id      uuid        not null,
    slot_no     bigint      not null,
    name        text        not null,                   -- of the signal, or of the step
    primary key (at, seq)
) with (
    -- Rows live for milliseconds, and every claim looks at the first: vacuum early.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Last, the version that this script leads to, and the oldest that may run on it. Newer ones stay.
insert into reltask.meta as meta (schema_version, oldest_version) values (5, 5)
on conflict (only_row) do update
set schema_version = excluded.schema_version, oldest_version = excluded.oldest_version,
    migrated_at = excluded.migrated_at
where meta.schema_version < excluded.schema_version;
