-- Purpose       Count the runs that lost their lock, by task, outcome and worker.
-- Precondition  None. Reads every ledger row.
-- Lock order    Locks nothing.
-- Returns       One row per task, outcome and worker, with the error of the latest run.
-- Parameters    :task is null for all tasks; :limit.
--
--     lost        the lock expired, and another worker reclaimed the job
--     abandoned   the worker found that it had lost the lock, or was about to, and gave up
--     returned    how many of these runs have a worker that was seen alive later: it was not dead
--
-- A returned worker was paused or cut off, and its later writes for the run were refused. A refused
-- write leaves no row, so it cannot be counted.

select run.task,
       run.outcome,
       run.worker,
       count(*) as runs,
       count(*) filter (where worker.heartbeat_at > run.finished_at) as returned,
       max(run.finished_at) as last_at,
       (pg_catalog.array_agg(run.error order by run.finished_at desc, run.fence desc))[1] as reason
from reltask.runs as run
left join reltask.workers as worker on worker.id = run.worker
where run.outcome in ('lost', 'abandoned')
  and (:task::text is null or run.task = :task::text)
group by run.task, run.outcome, run.worker
order by last_at desc, run.task, run.worker, run.outcome
limit :limit::integer;
