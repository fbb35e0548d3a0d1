-- Purpose       keep a job from being claimed; a claim under way goes on.
-- Precondition  not paused yet, not dead.
-- Lock order    the whole file: one short write transaction.

update reltask_jobs
   set paused_at = :now
 where id = :job_id
   and paused_at is null
   and dead_at is null
returning id;
