-- Purpose       Insert one-offs without limits, and report which of their ids are in the database.
-- Precondition  Neither the table nor the ledger has the id, and no row has its (task, key). Other
--               jobs of the batch are left out.
-- Lock order    Inserted rows by (task, key), then by id, so that two batches cannot wait for each
--               other in a circle: neither one batch sent twice, nor two that have the same (task,
--               key) under different ids, as from workers that start together.
-- Returns       One row per id in the database: inserted is true if this statement inserted it, and
--               false if it was there before.
-- See           SQL.md: nullable now, materialized CTE, lost answer, delay in seconds, exact types.
--
-- Existing rows are excluded before the insert, although `on conflict` would refuse them too. The
-- run of such a row may be ending: the conflict would go away while this statement waits for it,
-- and this statement cannot see the ledger row that replaces it. That also holds for the first
-- sending, which may arrive last.
--
-- The known ids are looked up all at once. In a join with a table that the planner believes to be
-- empty, each id would be searched for in the whole table.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

given as materialized (
    select *
    from unnest(
        :ids::uuid[], :tasks::text[], :keys::text[], :queues::text[], :priorities::smallint[],
        :args::text[], :max_attempts::integer[], :lock_timeouts_ms::bigint[],
        :run_ats::timestamptz[], :delays::interval[], :headers::text[]
    ) as job (
        id, task, key, queue, priority, args, max_attempts, lock_timeout_ms, run_at, delay,
        headers
    )
),

known as materialized (
    select id from reltask.jobs where id = any (:ids::uuid[])
    union all
    select job_id from reltask.runs where job_id = any (:ids::uuid[])
),

inserted as (
    insert into reltask.jobs (
        id, task, key, queue, priority, args, max_attempts, lock_timeout_ms, created_at,
        next_run_time, headers
    )
    select given.id, given.task, given.key, given.queue, given.priority, given.args::json,
           given.max_attempts, given.lock_timeout_ms, parameters.now,
           coalesce(
               given.run_at,
               parameters.now
                   + coalesce(extract(epoch from given.delay), 0)::float8 * interval '1 second'
           ),
           given.headers::json
    from given
    cross join parameters
    where not exists (select from known where known.id = given.id)
    order by given.task, coalesce(given.key, ''), given.id
    on conflict do nothing
    returning id
)

select inserted.id, true as inserted
from inserted
union all
select known.id, false
from known;
