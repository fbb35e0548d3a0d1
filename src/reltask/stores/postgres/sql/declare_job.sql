-- Purpose       rewrite the definition of a recurring job after its declaration in code has changed.
-- Precondition  declaration and slot are still those that were seen, so that of two workers one wins, and a slot that has
--               ended meanwhile does not come back. And it is not claimed, or claimed by the worker that declares. A slot that runs is never moved, and its worker computes
--               the next time from the schedule that it has claimed: whoever declares comes again when it has ended. The
--               holder itself need not wait. It computes the next time from the new schedule.
--               A slot that stays where it is keeps what moved it: a backoff, a snooze, or an operator's "run now".
-- Lock order    one row.
--
-- A delay is so many seconds: as days it would be added to the date in the session's time zone, and be an hour off when
-- its clocks change.

update reltask.jobs as job
set queue = :queue::text,
    priority = :priority::smallint,
    args = :args::text::json,
    schedule = :schedule::text,
    declaration = :declaration::text,
    app_version = :app_version::text,
    max_attempts = :max_attempts::integer,
    lock_timeout_ms = :lock_timeout_ms::bigint,
    next_run_time = case when job.locked_by is null then slot.next_time else job.next_run_time end,
    not_before = case when job.locked_by is null and job.next_run_time <> slot.next_time then null else job.not_before end
from (
    select coalesce(
        :run_at::timestamptz,
        coalesce(:now::timestamptz, statement_timestamp())
            + coalesce(extract(epoch from :delay::interval), 0) * interval '1 second') as next_time
) as slot
where job.task = :task::text and coalesce(job.key, '') = coalesce(:key::text, '')
  and job.schedule is not null
  and (job.locked_by is null or (job.locked_by = :worker::text and job.fence = :fence::bigint))
  and job.declaration is not distinct from :seen::text and job.next_run_time = :seen_time::timestamptz
returning job.id;
