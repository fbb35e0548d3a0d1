-- Purpose       Update the definition of a recurring job after its declaration in code has changed.
-- Precondition  Declaration and next run time are still those that the caller has seen, so that of
--               two workers one wins, and a slot that has ended meanwhile does not come back. The
--               job is unclaimed, or claimed by this worker under :fence.
-- Lock order    One row. If it is locked, nothing is updated: a worker that starts must not wait
--               for another session. It declares again later.
-- Returns       One row with the id, if the job was updated.
-- See           SQL.md: nullable now, delay in seconds, exact types, skip locked.
--
-- A running slot is never moved, nor is a suspended one: its worker computes the next time from the
-- schedule that it claimed, and other workers declare again when the slot has ended. The holder
-- need not wait, because it computes the next time from the new schedule. A slot whose time does
-- not change keeps its not_before, which a backoff, a snooze or an operator's run-now has set.

update reltask.jobs as job
set queue = :queue::text,
    priority = :priority::smallint,
    args = :args::text::json,
    headers = :headers::text::json,
    limit_key = :limit_key::text,
    limits = case when :limits::text is not null
                  then array(select json_array_elements_text(:limits::text::json)) end,
    schedule = :schedule::text,
    declaration = :declaration::text,
    app_version = :app_version::text,
    max_attempts = :max_attempts::integer,
    lock_timeout_ms = :lock_timeout_ms::bigint,
    next_run_time = case when job.locked_by is null and not job.suspended then slot.next_time
                         else job.next_run_time end,
    not_before = case when job.locked_by is null and not job.suspended
                           and job.next_run_time <> slot.next_time
                      then null else job.not_before end
from (
    select coalesce(
        :run_at::timestamptz,
        coalesce(:now::timestamptz, statement_timestamp())
            + coalesce(extract(epoch from :delay::interval), 0)::float8 * interval '1 second'
    ) as next_time
) as slot
where job.id = (
          select own.id
          from reltask.jobs as own
          where own.task = :task::text and coalesce(own.key, '') = coalesce(:key::text, '')
            and own.schedule is not null
          for update skip locked
      )
  and (job.locked_by is null or (job.locked_by = :worker::text and job.fence = :fence::bigint))
  and job.declaration is not distinct from :seen::text
  and job.next_run_time = :seen_time::timestamptz
returning job.id;
