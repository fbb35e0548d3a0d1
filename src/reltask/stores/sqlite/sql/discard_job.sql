-- Purpose       Remove a job, with a ledger row that says so.
-- Precondition  Unclaimed, in both statements.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row with the id, if the job was removed.
-- See           SQL.md: one writer.
--
-- No worker ran the job, so the ledger row takes the fence that the next claim would have taken.

insert into reltask_runs (
    job_id, fence, slot_no, task, key, queue, worker, attempt, nominal_time, due_at, claimed_at,
    finished_at, outcome
)
select id, fence + 1, slot_no, task, key, queue, null, attempt, next_run_time, due_at, null, :now,
       'discarded'
from reltask_jobs
where id = :job_id
  and locked_by is null;

delete from reltask_jobs
where id = :job_id
  and locked_by is null
returning id;
