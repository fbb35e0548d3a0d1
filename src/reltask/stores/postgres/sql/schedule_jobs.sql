-- Purpose       Insert recurring jobs, and children of durable functions, as enqueue_jobs.sql does
--               other one-offs.
-- Precondition  Neither the table nor the ledger has the id, and no row has its (task, key). Other
--               jobs of the batch are left out.
-- Lock order    Inserted rows by (task, key), then by id, so that two batches cannot wait for each
--               other in a circle: neither one batch sent twice, nor two that have the same (task,
--               key) under different ids, as from workers that start together.
-- Returns       One row per id in the database: inserted is true if this statement inserted it, and
--               false if it was there before.
-- See           SQL.md: nullable now, materialized CTE, lost answer, delay in seconds, exact types.
--
-- Only the columns of a schedule and of a parent differ. The role reltask_enqueue may not write
-- them, so other one-offs have a statement that does not name them.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

given as materialized (
    select *
    from unnest(
        :ids::uuid[], :tasks::text[], :keys::text[], :queues::text[], :priorities::smallint[],
        :args::text[], :schedules::text[], :declarations::text[], :app_versions::text[],
        :max_attempts::integer[], :lock_timeouts_ms::bigint[], :run_ats::timestamptz[],
        :delays::interval[], :parent_ids::uuid[], :parent_slots::bigint[], :parent_steps::text[],
        :parent_nths::integer[], :headers::text[], :limit_keys::text[], :limits::text[]
    ) as job (
        id, task, key, queue, priority, args, schedule, declaration, app_version, max_attempts,
        lock_timeout_ms, run_at, delay, parent_id, parent_slot, parent_step, parent_nth, headers,
        limit_key, limits
    )
),

known as materialized (
    select id from reltask.jobs where id = any (:ids::uuid[])
    union all
    select job_id from reltask.runs where job_id = any (:ids::uuid[])
),

inserted as (
    insert into reltask.jobs (
        id, task, key, queue, priority, args, schedule, declaration, app_version, max_attempts,
        lock_timeout_ms, created_at, next_run_time, parent_id, parent_slot, parent_step, parent_nth,
        headers, limit_key, limits
    )
    select given.id, given.task, given.key, given.queue, given.priority, given.args::json,
           given.schedule, given.declaration, given.app_version, given.max_attempts,
           given.lock_timeout_ms, parameters.now,
           coalesce(
               given.run_at,
               parameters.now
                   + coalesce(extract(epoch from given.delay), 0)::float8 * interval '1 second'
           ),
           given.parent_id, given.parent_slot, given.parent_step, given.parent_nth,
           given.headers::json, given.limit_key,
           case when given.limits is not null
                then array(select json_array_elements_text(given.limits::json)) end
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
