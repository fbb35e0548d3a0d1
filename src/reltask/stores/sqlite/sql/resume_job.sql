-- Purpose       let a paused job be claimed again.
-- Precondition  paused, not dead.
-- Lock order    the whole file: one short write transaction.

update reltask_jobs
   set paused_at = null
 where id = :job_id
   and paused_at is not null
   and dead_at is null
returning id;
