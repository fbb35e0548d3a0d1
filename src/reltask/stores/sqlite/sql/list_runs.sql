-- Purpose       List ledger rows, newest first: of one job, or of all.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per run. Statement 1: of one job, by its key. Statement 2: of all, by the
--               time they ended.

select job_id, fence, slot_no, task, key, queue, worker, attempt, nominal_time, due_at, claimed_at,
       finished_at, outcome, error, result, steps
from reltask_runs
where job_id = :job_id
  and (:task is null or task = :task)
order by finished_at desc, fence desc
limit :limit;

select job_id, fence, slot_no, task, key, queue, worker, attempt, nominal_time, due_at, claimed_at,
       finished_at, outcome, error, result, steps
from reltask_runs
where (:task is null or task = :task)
order by finished_at desc, fence desc
limit :limit;
