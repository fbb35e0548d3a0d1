-- Make a job due at once; its nominal time stays. Precondition: unclaimed, not dead.
update reltask_jobs
   set not_before = :now
 where id = :job_id
   and locked_by is null
   and dead_at is null
returning id;
