-- Keep a job from being claimed; a claim under way goes on. Precondition: not paused yet, not dead.
update reltask_jobs
   set paused_at = :now
 where id = :job_id
   and paused_at is null
   and dead_at is null
returning id;
