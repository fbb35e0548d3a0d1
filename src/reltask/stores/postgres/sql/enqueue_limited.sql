-- Purpose       Insert one-offs with limits, mark their keys, and report which of their ids are in
--               the database.
-- Precondition  Neither the table nor the ledger has the id, and no row has its (task, key). Other
--               jobs of the batch are left out.
-- Lock order    Inserted rows by (task, key), then by id, so that two batches cannot wait for each
--               other in a circle: neither one batch sent twice, nor two that have the same (task,
--               key) under different ids, as from workers that start together.
-- Returns       One row per id in the database: inserted is true if this statement inserted it, and
--               false if it was there before.
-- See           SQL.md: nullable now, materialized CTE, lost answer, delay in seconds, exact types,
--               silenced trigger.
--
-- Does what enqueue_jobs.sql does, and writes one mark for each queue, task, key and time, where a
-- trigger would write one for each job.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now,
           set_config('reltask.marked', 'jobs', true) as silenced
),

given as materialized (
    select job.*,
           coalesce(
               job.run_at,
               parameters.now
                   + coalesce(extract(epoch from job.delay), 0)::float8 * interval '1 second'
           ) as time
    from unnest(
        :ids::uuid[], :tasks::text[], :keys::text[], :queues::text[], :priorities::smallint[],
        :args::text[], :max_attempts::integer[], :lock_timeouts_ms::bigint[],
        :run_ats::timestamptz[], :delays::interval[], :headers::text[], :limit_keys::text[],
        :limits::text[]
    ) as job (
        id, task, key, queue, priority, args, max_attempts, lock_timeout_ms, run_at, delay,
        headers, limit_key, limits
    )
    cross join parameters
),

known as materialized (
    select id from reltask.jobs where id = any (:ids::uuid[])
    union all
    select job_id from reltask.runs where job_id = any (:ids::uuid[])
),

inserted as (
    insert into reltask.jobs (
        id, task, key, queue, priority, args, max_attempts, lock_timeout_ms, created_at,
        next_run_time, headers, limit_key, limits
    )
    select given.id, given.task, given.key, given.queue, given.priority, given.args::json,
           given.max_attempts, given.lock_timeout_ms, parameters.now,
           given.time, given.headers::json, given.limit_key,
           case when given.limits is not null
                then array(select json_array_elements_text(given.limits::json)) end
    from given
    cross join parameters
    where not exists (select from known where known.id = given.id)
    order by given.task, coalesce(given.key, ''), given.id
    on conflict do nothing
    returning id
),

marked as (
    insert into reltask.marks (queue, task, at, kind, name)
    select distinct given.queue, given.task, given.time, 'limit', given.limit_key
    from given
    where given.limit_key is not null and given.time < timestamptz '8999-12-31 00:00:00+00'
      and (given.id in (select id from inserted)) is true
),

-- Later statements of the transaction, if there are any, are not this one's business.
heard as materialized (
    select set_config('reltask.marked', '', true) as name
    from (select count(*) from inserted) as all_of_them
)

select inserted.id, true as inserted
from inserted
cross join heard
union all
select known.id, false
from known;
