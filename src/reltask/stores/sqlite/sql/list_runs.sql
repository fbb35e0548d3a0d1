-- Purpose       ledger rows, newest first: of one job by its key, or of all by the time they ended.
-- Precondition  none.
-- Lock order    none: reads the last committed state.

select job_id, fence, slot_no, task, key, queue, worker, attempt, nominal_time, due_at, claimed_at, finished_at,
       outcome, error, result
  from reltask_runs
 where job_id = :job_id
   and (:task is null or task = :task)
 order by finished_at desc, fence desc
 limit :limit;

select job_id, fence, slot_no, task, key, queue, worker, attempt, nominal_time, due_at, claimed_at, finished_at,
       outcome, error, result
  from reltask_runs
 where (:task is null or task = :task)
 order by finished_at desc, fence desc
 limit :limit;
