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
-- marks       what has to be looked at: a job, because a signal came or a child ended; or the key
--             of a limit (006). Workers fold them
--
-- The bounds are those of the jobs: what a worker could not read or compute with is refused.

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
    primary key (job_id, slot_no, name),

    constraint steps_names_fit check (
        octet_length(name) between 1 and 2000 and octet_length(signal) between 1 and 2000
        and octet_length(fingerprint) <= 2000
    ),
    constraint steps_texts_fit check (
        pg_catalog.pg_column_size(value) <= 16000004
        and pg_catalog.pg_column_size(error) <= 16000004
    ),
    constraint steps_times_in_range check (
        least(started_at, recorded_at, wake_at) >= timestamptz '1970-01-01 00:00:00+00'
        and greatest(started_at, recorded_at, wake_at) < timestamptz '9000-01-01 00:00:00+00'
    )
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
    primary key (job_id, slot_no, name, id),

    constraint signals_names_fit check (
        octet_length(name) between 1 and 2000 and octet_length(id) between 1 and 2000
    ),
    constraint signals_names_are_printable check (
        name || id !~ '[\u0001-\u001f\u007f-\u009f]'
    ),
    constraint signals_value_fits check (pg_catalog.pg_column_size(value) <= 16000004),
    constraint signals_sent_at_in_range check (
        sent_at >= timestamptz '1970-01-01 00:00:00+00'
        and sent_at < timestamptz '9000-01-01 00:00:00+00'
    )
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
    primary key (parent_id, slot_no, step, nth),

    constraint child_ends_texts_fit check (
        octet_length(step) <= 2000 and pg_catalog.pg_column_size(value) <= 16000004
        and pg_catalog.pg_column_size(error) <= 16000004
    ),
    constraint child_ends_ended_at_in_range check (
        ended_at >= timestamptz '1970-01-01 00:00:00+00'
        and ended_at < timestamptz '9000-01-01 00:00:00+00'
    )
);

create index if not exists child_ends_ended on reltask.child_ends (ended_at);

create table if not exists reltask.marks (
    queue       text        not null default '',        -- of the jobs that it is about, if it is
    task        text        not null default '',        -- about a limit: see 006
    at          timestamptz not null,
    seq         bigint      generated always as identity,
    kind        text        not null check (kind in ('signal', 'child', 'limit')),
    job_id      uuid,
    slot_no     bigint,
    name        text        not null,                   -- of the signal, the step, or the key
    freed       integer     not null default 0,         -- places of the key that became free
    primary key (queue, task, at, seq),

    constraint marks_name_fits check (octet_length(name) between 1 and 2000),
    constraint marks_are_about_one_thing check (
        kind = 'limit' and job_id is null and slot_no is null
        and octet_length(queue) <= 2000 and octet_length(task) between 1 and 2000
        or kind <> 'limit' and job_id is not null and slot_no is not null
        and queue = '' and task = '' and freed = 0
    ),
    constraint marks_freed_in_range check (freed between -1000000 and 1000000),
    constraint marks_at_in_range check (
        at >= timestamptz '1970-01-01 00:00:00+00'
        and at < timestamptz '9000-01-01 00:00:00+00'
    )
) with (
    -- Rows live for milliseconds, and every claim looks at the first: vacuum early.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Whether a key has a mark already.
create index if not exists marks_of_keys on reltask.marks (name, queue, task)
    where kind = 'limit';

-- Last, the version that this script leads to, and the oldest that may run on it. Newer ones stay.
insert into reltask.meta as meta (schema_version, oldest_version) values (5, 5)
on conflict (only_row) do update
set schema_version = excluded.schema_version, oldest_version = excluded.oldest_version,
    migrated_at = excluded.migrated_at
where meta.schema_version < excluded.schema_version;
