-- Purpose       Let a paused job be claimed again.
-- Precondition  Paused, not dead; still the fence that was seen, if one is given.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row with the id, if the job was resumed.
-- See           SQL.md: one writer.

update reltask_jobs
set paused_at = null
where id = :job_id
  and paused_at is not null
  and dead_at is null
  and (:fence is null or fence = :fence)
returning id;
