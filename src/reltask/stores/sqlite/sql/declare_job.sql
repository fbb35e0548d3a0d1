-- Purpose       rewrite a recurring job's definition after its declaration in code has changed.
-- Precondition  its declaration is still the one that was seen, and it is not claimed. A slot that runs is never moved,
--               and its worker computes the next time from the schedule that it has claimed: whoever declares comes
--               again when it has ended.
-- Lock order    the whole file: one short write transaction.

update reltask_jobs
   set queue           = :queue,
       priority        = :priority,
       args            = :args,
       schedule        = :schedule,
       declaration     = :declaration,
       app_version     = :app_version,
       max_attempts    = :max_attempts,
       lock_timeout_ms = :lock_timeout_ms,
       next_run_time   = coalesce(:run_at, :now + coalesce(:delay, 0)),
       not_before      = null
 where task = :task
   and coalesce(key, '') = coalesce(:key, '')
   and schedule is not null
   and locked_by is null
   and declaration is :seen
returning id;
