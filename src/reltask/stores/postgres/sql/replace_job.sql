-- Purpose       Give the job that has a unique key other arguments, headers and another time.
-- Precondition  Unclaimed, not dead, and its run has never begun.
-- Lock order    One row. Waits for it, then checks it again.
-- Returns       One row with the id, if the job was changed.
-- See           SQL.md: nullable now, delay in seconds, primary-key lookup.

update reltask.jobs as job
set args = :args::text::json,
    headers = :headers::text::json,
    next_run_time = coalesce(
        :run_at::timestamptz,
        parameters.now
            + coalesce(extract(epoch from :delay::interval), 0)::float8 * interval '1 second'
    ),
    not_before = null
from reltask.keys as held
cross join (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
) as parameters
where held.task = :task::text and held.key = :unique_key::text
  and job.id = any (array[held.job_id])
  and job.locked_by is null and job.dead_at is null and job.slot_started_at is null
  and job.schedule is null
returning job.id;
