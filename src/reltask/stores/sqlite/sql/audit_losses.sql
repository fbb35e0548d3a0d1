-- Purpose       Count the runs that lost their lock, by task, outcome and worker.
-- Precondition  None. Reads every ledger row.
-- Lock order    Locks nothing.
-- Returns       One row per task, outcome and worker, with the error of the latest run.
-- Parameters    :task is null for all tasks; :limit.
-- See           SQL.md: bare columns.
--
--     lost        the lock expired, and another worker reclaimed the job
--     abandoned   the worker found that it had lost the lock, or was about to, and gave up
--     returned    how many of these runs have a worker that was seen alive later: it was not dead
--
-- A returned worker was paused or cut off, and its later writes for the run were refused. A refused
-- write leaves no row, so it cannot be counted.

select runs.task,
       runs.outcome,
       runs.worker,
       count(*) as runs,
       count(*) filter (where workers.heartbeat_at > runs.finished_at) as returned,
       max(runs.finished_at) as last_at,
       runs.error as reason
from reltask_runs as runs
left join reltask_workers as workers on workers.id = runs.worker
where runs.outcome in ('lost', 'abandoned')
  and (:task is null or runs.task = :task)
group by runs.task, runs.outcome, runs.worker
order by last_at desc, runs.task, runs.worker, runs.outcome
limit :limit;
