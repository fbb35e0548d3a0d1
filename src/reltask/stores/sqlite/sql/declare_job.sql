-- Purpose       rewrite a recurring job's definition after its declaration in code has changed.
-- Precondition  declaration and slot are still those that were seen, so that of two workers one wins, and a slot that has
--               ended meanwhile does not come back. And it is not claimed, or claimed by the worker that declares. A slot that runs is never moved, and its worker computes
--               the next time from the schedule that it has claimed: whoever declares comes again when it has ended. The
--               holder itself need not wait. It computes the next time from the new schedule.
--               A slot that stays where it is keeps what moved it: a backoff, a snooze, or an operator's "run now".
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
       next_run_time   = case when locked_by is null
                              then coalesce(:run_at, :now + coalesce(:delay, 0))
                              else next_run_time end,
       not_before      = case when locked_by is null and next_run_time <> coalesce(:run_at, :now + coalesce(:delay, 0))
                              then null
                              else not_before end
 where task = :task
   and coalesce(key, '') = coalesce(:key, '')
   and schedule is not null
   and (locked_by is null or (locked_by = :worker and fence = :fence))
   and declaration is :seen
   and next_run_time = :seen_time
returning id;
