-- Purpose       make a job due at once; its nominal time stays, and a job that is already due keeps its place.
-- Precondition  unclaimed, not dead.
-- Lock order    the whole file: one short write transaction.

update reltask_jobs
   set not_before = min(due_at, :now)
 where id = :job_id
   and locked_by is null
   and dead_at is null
returning id;
