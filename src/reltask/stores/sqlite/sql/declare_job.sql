-- Purpose       Update the definition of a recurring job after its declaration in code has changed.
-- Precondition  Declaration and next run time are still those that the caller has seen, so that of
--               two workers one wins, and a slot that has ended meanwhile does not come back. The
--               job is unclaimed, or claimed by this worker under :fence.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row with the id, if the job was updated.
-- See           SQL.md: one writer.
--
-- A running slot is never moved, nor is a suspended one: its worker computes the next time from the
-- schedule that it claimed, and other workers declare again when the slot has ended. The holder
-- need not wait, because it computes the next time from the new schedule. A slot whose time does
-- not change keeps its not_before, which a backoff, a snooze or an operator's run-now has set.

update reltask_jobs
set queue = :queue,
    priority = :priority,
    args = :args,
    headers = :headers,
    limit_key = :limit_key,
    limits = :limits,
    schedule = :schedule,
    declaration = :declaration,
    app_version = :app_version,
    max_attempts = :max_attempts,
    lock_timeout_ms = :lock_timeout_ms,
    next_run_time = case when locked_by is null and not suspended
                         then coalesce(:run_at, :now + coalesce(:delay, 0))
                         else next_run_time end,
    not_before = case when locked_by is null and not suspended
                           and next_run_time <> coalesce(:run_at, :now + coalesce(:delay, 0))
                      then null
                      else not_before end
where task = :task
  and coalesce(key, '') = coalesce(:key, '')
  and schedule is not null
  and (locked_by is null or (locked_by = :worker and fence = :fence))
  and declaration is :seen
  and next_run_time = :seen_time
returning id;
