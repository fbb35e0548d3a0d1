-- Purpose       Write a run's progress.
-- Precondition  The job's row still has this id, owner and fence.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row with the id, if the claim still holds.
-- See           SQL.md: one writer, fence.

update reltask_jobs
set progress = :progress
where id = :job_id
  and fence = :fence
  and locked_by = :worker
returning id;
