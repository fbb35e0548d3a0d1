-- Purpose       Insert one-offs of unique tasks whose key is free, and report which of the ids are
--               in the database.
-- Precondition  Neither the table nor the ledger has the id. The key has no row, or its job is
--               gone, dead or, if it is free from the start on, begun, and its time is over.
-- Lock order    Rows of keys by (task, key), then the inserted jobs. Waits for a transaction that
--               has inserted or taken over the same key.
-- Returns       One row per id in the database: inserted is true if this statement inserted it, and
--               false if it was there before.
-- See           SQL.md: nullable now, materialized CTE, lost answer, delay in seconds, exact types.
--
-- Whether a key's job lives is read in the snapshot. A key and its job are committed together: if
-- the snapshot has the key and not the job, the job has ended, and never comes back. The locked row
-- must still have that job. A key that was taken after the snapshot has another one, and is
-- refused: its job would not be seen.
--
-- A known id is left out before its key is taken. Else a job that was sent twice, and has ended,
-- would leave a key that no end frees. A key that the same id has is not refused: it was sent
-- twice.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

given as materialized (
    select *
    from unnest(
        :ids::uuid[], :tasks::text[], :keys::text[], :queues::text[], :priorities::smallint[],
        :args::text[], :max_attempts::integer[], :lock_timeouts_ms::bigint[],
        :run_ats::timestamptz[], :delays::interval[], :headers::text[], :unique_keys::text[],
        :keeps::interval[], :until_starts::boolean[], :limit_keys::text[], :limits::text[]
    ) as job (
        id, task, key, queue, priority, args, max_attempts, lock_timeout_ms, run_at, delay,
        headers, unique_key, keep, until_start, limit_key, limits
    )
),

known as materialized (
    select id from reltask.jobs where id = any (:ids::uuid[])
    union all
    select job_id from reltask.runs where job_id = any (:ids::uuid[])
),

new as materialized (
    select distinct on (given.task, given.unique_key) given.*
    from given
    where not exists (select from known where known.id = given.id)
    order by given.task, given.unique_key, given.id
),

free as materialized (
    select held.task, held.key, held.job_id
    from new
    cross join parameters
    cross join lateral (
        select one.task, one.key, one.job_id, one.until, one.until_start
        from reltask.keys as one
        where one.task = new.task and one.key = new.unique_key
        limit 1
    ) as held
    where coalesce(held.until <= parameters.now, true)
      and not exists (
          select
          from reltask.jobs as job
          where job.id = any (array[held.job_id]) and job.dead_at is null
            and (not held.until_start or job.slot_started_at is null)
      )
),

taken as (
    insert into reltask.keys as held (task, key, job_id, until, until_start)
    select new.task, new.unique_key, new.id,
           parameters.now + extract(epoch from new.keep)::float8 * interval '1 second',
           new.until_start
    from new
    cross join parameters
    order by new.task, new.unique_key
    on conflict (task, key) do update
    set job_id = excluded.job_id, until = excluded.until, until_start = excluded.until_start
    where held.job_id = excluded.job_id or exists (
        select
        from free
        where free.task = held.task and free.key = held.key and free.job_id = held.job_id
    )
    returning job_id
),

inserted as (
    insert into reltask.jobs (
        id, task, key, queue, priority, args, max_attempts, lock_timeout_ms, created_at,
        next_run_time, headers, limit_key, limits
    )
    select new.id, new.task, new.key, new.queue, new.priority, new.args::json, new.max_attempts,
           new.lock_timeout_ms, parameters.now,
           coalesce(
               new.run_at,
               parameters.now
                   + coalesce(extract(epoch from new.delay), 0)::float8 * interval '1 second'
           ),
           new.headers::json, new.limit_key,
           case when new.limits is not null
                then array(select json_array_elements_text(new.limits::json)) end
    from new
    join taken on taken.job_id = new.id
    cross join parameters
    order by new.id
    on conflict do nothing
    returning id
)

select inserted.id, true as inserted
from inserted
union all
select known.id, false
from known;
