-- Purpose       Renew a worker's claims and its own row, and find claims whose answers were lost.
-- Precondition  The job's row still has this id, owner and fence; or this owner and one of the
--               tokens in :pending, whose claims wait for their answer.
-- Lock order    Rows by ascending id; locked rows are skipped, so a heartbeat never waits. A row
--               missing from the result is therefore suspect, not lost; read_holds.sql decides.
-- Returns       One row per renewed claim, cancelled is true if its slot is; and, with stray set,
--               one per claim of this worker that has one of :tokens, which means that its answer
--               was lost.
-- See           SQL.md: nullable now, materialized CTE, fence, lock order by id, skip locked,
--               primary-key lookup, generated column.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

given as materialized (
    select pair.id, pair.fence
    from unnest(:ids::uuid[], :fences::bigint[]) as pair (id, fence)
),

held as materialized (
    select job.id
    from (select * from given order by id) as pair
    cross join lateral (
        select id
        from reltask.jobs
        where id = pair.id and fence = pair.fence and locked_by is not distinct from :worker::text
        for update skip locked
    ) as job
),

-- Reads all claimed rows, but only if a claim has waited for its answer for a whole interval.
pending as materialized (
    select id
    from reltask.jobs
    where pg_catalog.cardinality(:pending::uuid[]) > 0
      and locked_by = :worker::text and claim_token = any (:pending::uuid[])
    for update skip locked
),

renewed as (
    update reltask.jobs as job
    set heartbeat_at = parameters.now,
        -- A lock timeout out of its range, see claim_jobs.sql, would keep the row for a century.
        lock_expires_at =
            case when job.claim_timeout_ms > 3155760000000 then job.lock_expires_at
                 else parameters.now + job.claim_timeout_ms::float8 * interval '1 millisecond' end,
        -- unchanged, see SQL.md: generated column
        not_before = job.not_before
    from parameters
    where job.id = any (array(select id from held union select id from pending))
    returning job.id, job.fence, job.cancel_slot = job.slot_no as cancelled
),

alive as (
    update reltask.workers as worker
    set heartbeat_at = parameters.now,
        alive_until = parameters.now + :alive_for::interval,
        dead_at = null
    from parameters
    where worker.id = (
        select me.id
        from reltask.workers as me
        where me.id = :worker::text
        for update skip locked
    )
)

select renewed.id, renewed.fence, false as stray, renewed.cancelled
from renewed
union all
-- Reads all claimed rows, but only if there is a claim whose answer was lost.
select job.id, job.fence, true, null
from reltask.jobs as job
where pg_catalog.cardinality(:tokens::uuid[]) > 0
  and job.locked_by = :worker::text and job.claim_token = any (:tokens::uuid[]);
