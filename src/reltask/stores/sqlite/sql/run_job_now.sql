-- Purpose       Make a job due at once; its nominal time stays, and a due job keeps its place.
-- Precondition  Unclaimed, not dead; still the fence that was seen, if one is given.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row with the id, if the job was unclaimed and not dead.
-- See           SQL.md: one writer.

update reltask_jobs
set not_before = min(due_at, :now)
where id = :job_id
  and locked_by is null
  and dead_at is null
  and (:fence is null or fence = :fence)
returning id;
