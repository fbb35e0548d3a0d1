-- Purpose       ledger rows, newest first, for people.
-- Precondition  none; reads only.
-- Lock order    no locks.

select job_id, fence, slot_no, task, key, queue, worker, attempt, nominal_time, due_at, claimed_at, finished_at,
       outcome, error, result
from reltask.runs
where (:job_id::uuid is null or job_id = :job_id::uuid)
  and (:task::text is null or task = :task::text)
order by finished_at desc, fence desc, job_id
limit :limit::integer;
