-- Purpose       Sample the newest runs: how long they took, and how late they began.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per run that a worker has claimed, newest first.
-- Parameters    :since is in microseconds; :limit is the size of the sample.
-- See           SQL.md: nullable now.

select task, queue, outcome,
       max(finished_at - claimed_at, 0) / 1000000.0 as seconds,
       max(claimed_at - due_at, 0) / 1000000.0 as late
from (
    select task, queue, outcome, due_at, claimed_at, finished_at
    from reltask_runs
    where finished_at > :now - :since
    order by finished_at desc
    limit :limit
)
where claimed_at is not null;
