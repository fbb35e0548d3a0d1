-- Durable functions. reltask runs it itself. It can be run again: an existing table stays as it is.
--
-- Version 5; code of version 5 or newer may run on it: no earlier one was released.
--
-- reltask_steps       what durable functions have recorded, one row per slot and name; kept as long
--                     as the ledger rows of the slot
-- reltask_signals     what was sent to jobs; consumed ones stay until the slot ends, so that none
--                     counts twice
-- reltask_child_ends  how the children of a step ended
-- reltask_marks       jobs that have to be looked at, because a signal came or a child ended;
--                     workers fold them

create table if not exists reltask_steps (
    job_id      text    not null,
    slot_no     integer not null,
    name        text    not null,                       -- a repeated one ends with #2, #3 …
    kind        text    not null check (kind in (
        'step', 'transact', 'sleep', 'wait', 'run', 'start'
    )),
    state       text    not null check (state in ('waiting', 'done', 'failed')),
    value       text,                                   -- what the step returned
    error       text,                                   -- "Kind: message" of what it raised
    fingerprint text    not null,                       -- hash of function and arguments
    attempt     integer not null,                       -- of the step itself
    fence       integer not null,                       -- of the run that wrote it
    started_at  integer not null,
    recorded_at integer not null,
    wake_at     integer,                                -- waiting: until when; null: no limit
    signal      text,                                   -- wait: the name of the signal
    pending     integer not null,                       -- run: children that have not ended
    primary key (job_id, slot_no, name)
) without rowid;

-- Which steps wait for a signal: a mark finds them without reading the slot's other steps.
create index if not exists reltask_steps_waiting on reltask_steps (job_id, slot_no, signal)
    where state = 'waiting' and signal is not null;

create table if not exists reltask_signals (
    job_id      text    not null,
    slot_no     integer not null,
    name        text    not null,
    id          text    not null,                       -- the sender's: sent twice, it counts once
    seq         integer primary key,
    value       text    not null,
    sent_at     integer not null,
    consumed_by text,                                   -- the step; null: it waits
    unique (job_id, slot_no, name, id)
);

create table if not exists reltask_child_ends (
    parent_id   text    not null,
    slot_no     integer not null,                       -- the parent's
    step        text    not null,
    nth         integer not null,
    job_id      text    not null,                       -- the child
    outcome     text    not null check (outcome in (
        'succeeded', 'cancelled', 'discarded', 'failed'
    )),
    value       text,
    error       text,
    ended_at    integer not null,
    primary key (parent_id, slot_no, step, nth)
) without rowid;

create table if not exists reltask_marks (
    at          integer not null,
    seq         integer primary key,
    kind        text    not null check (kind in ('signal', 'child')),
    job_id      text    not null,
    slot_no     integer not null,
    name        text    not null                        -- of the signal, or of the step
);

create index if not exists reltask_marks_in_order on reltask_marks (at, seq);

-- Last, the version that this script leads to, and the oldest that may run on it. Newer ones stay.
insert into reltask_meta (only_row, schema_version, oldest_version) values (1, 5, 5)
on conflict (only_row) do update
set schema_version = excluded.schema_version, oldest_version = excluded.oldest_version,
    migrated_at = excluded.migrated_at
where reltask_meta.schema_version < excluded.schema_version;
