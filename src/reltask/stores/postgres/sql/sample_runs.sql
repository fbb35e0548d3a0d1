-- Purpose       Sample the newest runs: how long they took, and how late they began.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per run that a worker has claimed, newest first.
-- Parameters    :since is an interval; :limit is the size of the sample.
-- See           SQL.md: nullable now, exact types.

select run.task, run.queue, run.outcome,
       greatest(extract(epoch from run.finished_at - run.claimed_at), 0)::double precision
           as seconds,
       greatest(
           extract(epoch from run.claimed_at - nullif(run.due_at, '-infinity')), 0
       )::double precision
           as late
from (
    select task, queue, outcome, due_at, claimed_at, finished_at
    from reltask.runs
    where finished_at > coalesce(:now::timestamptz, statement_timestamp()) - :since::interval
    order by finished_at desc
    limit :limit::integer
) as run
where run.claimed_at is not null;
