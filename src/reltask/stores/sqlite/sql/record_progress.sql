-- Purpose       write a run's progress.
-- Precondition  id, owner and fence.
-- Lock order    the whole file: one short write transaction.

update reltask_jobs
   set progress = :progress
 where id = :job_id
   and fence = :fence
   and locked_by = :worker
returning id;
