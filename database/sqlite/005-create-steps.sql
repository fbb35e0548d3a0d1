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
    unique (job_id, slot_no, name, id),

    constraint signals_names_fit check (
        length(name) between 1 and 2000 and length(id) between 1 and 2000
    ),
    constraint signals_names_are_printable check (
        name || id not glob
            '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
    ),
    constraint signals_value_is_json check (json_valid(value)),
    constraint signals_sent_at_in_range check (
        typeof(sent_at) = 'integer' and sent_at between 0 and 221845391999999999
    )
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
    queue       text    not null default '',            -- of the jobs that it is about, if it is
    task        text    not null default '',            -- about a limit: see 006
    at          integer not null,
    seq         integer primary key,
    kind        text    not null check (kind in ('signal', 'child', 'limit')),
    job_id      text,
    slot_no     integer,
    name        text    not null,                       -- of the signal, the step, or the key
    freed       integer not null default 0,             -- places of the key that became free

    constraint marks_at_in_range check (
        typeof(at) = 'integer' and at between 0 and 221845391999999999
    ),
    constraint marks_are_about_one_thing check (
        kind = 'limit' and job_id is null and slot_no is null and length(task) > 0
        or kind <> 'limit' and job_id is not null and slot_no is not null
        and queue = '' and task = '' and freed = 0
    ),
    constraint marks_freed_in_range check (
        typeof(freed) = 'integer' and freed between -1000000 and 1000000
    )
);

create index if not exists reltask_marks_in_order on reltask_marks (queue, task, at, seq);

-- Whether a key has a mark already.
create index if not exists reltask_marks_of_keys on reltask_marks (name, queue, task)
    where kind = 'limit';

-- Last, the version that this script leads to, and the oldest that may run on it. Newer ones stay.
insert into reltask_meta (only_row, schema_version, oldest_version) values (1, 5, 5)
on conflict (only_row) do update
set schema_version = excluded.schema_version, oldest_version = excluded.oldest_version,
    migrated_at = excluded.migrated_at
where reltask_meta.schema_version < excluded.schema_version;
