-- Let a paused job be claimed again. Precondition: paused, not dead.
update reltask_jobs
   set paused_at = null
 where id = :job_id
   and paused_at is not null
   and dead_at is null
returning id;
