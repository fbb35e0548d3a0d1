-- Purpose       Insert a one-off, as enqueue_jobs.sql does for many, at two thirds of its cost.
-- Precondition  Neither the table nor the ledger has the id, and no row has its (task, key).
-- Lock order    The inserted row.
-- Returns       One row, if the job was inserted: id, and inserted, which is true.
-- See           SQL.md: nullable now, lost answer, delay in seconds, exact types.

insert into reltask.jobs (
    id, task, key, queue, priority, args, max_attempts, lock_timeout_ms, created_at, next_run_time,
    headers
)
select :id::uuid, :task::text, :key::text, :queue::text, :priority::smallint, :args::text::json,
       :max_attempts::integer, :lock_timeout_ms::bigint, parameters.now,
       coalesce(
           :run_at::timestamptz,
           parameters.now
               + coalesce(extract(epoch from :delay::interval), 0)::float8 * interval '1 second'
       ),
       :headers::text::json
from (select coalesce(:now::timestamptz, statement_timestamp()) as now) as parameters
where not exists (select from reltask.jobs where id = :id::uuid)
  and not exists (select from reltask.runs where job_id = :id::uuid)
on conflict do nothing
returning id, true as inserted;
