-- Purpose       Release claims unfinished: the slot stays, and the attempt is given back. If it is
--               counted, it is not, and the job is dead at its last attempt.
-- Precondition  Each job's row still has this id, owner and fence. A row that does not match is not
--               written, and is missing from the result.
-- Lock order    Rows by ascending id; locked rows are skipped, so a settlement never waits. A row
--               missing from the result is therefore suspect, not lost; read_holds.sql decides.
-- Returns       One row per accepted release: id, fence, and whether the job is dead.
-- See           SQL.md: nullable now, materialized CTE, fence, lock order by id, skip locked,
--               primary-key lookup, delay in seconds.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

held as materialized (
    select job.id, job.fence, job.slot_no, job.task, job.key, job.queue, job.attempt,
           job.next_run_time, job.due_at, job.locked_at, given.outcome, given.error, given.delay,
           given.counted, coalesce(given.counted and job.attempt >= job.max_attempts, false) as dead
    from (
        select *
        from unnest(
            :ids::uuid[], :fences::bigint[], :outcomes::text[], :errors::text[],
            :delays::interval[], :counted::boolean[]
        ) as one (id, fence, outcome, error, delay, counted)
        order by id
    ) as given
    cross join lateral (
        select *
        from reltask.jobs
        where id = given.id and fence = given.fence and locked_by is not distinct from :worker::text
        for update skip locked
    ) as job
),

ledger as (
    insert into reltask.runs (
        job_id, fence, slot_no, task, key, queue, worker, attempt,
        nominal_time, due_at, claimed_at, finished_at, outcome, error
    )
    select held.id, held.fence, held.slot_no, held.task, held.key, held.queue, :worker::text,
           held.attempt, held.next_run_time, held.due_at, held.locked_at, parameters.now,
           held.outcome, held.error
    from held
    cross join parameters
),

kept as (
    update reltask.jobs as job
    set not_before = coalesce(
            parameters.now + extract(epoch from held.delay)::float8 * interval '1 second',
            job.not_before
        ),
        attempt = case when held.counted then held.attempt else greatest(held.attempt - 1, 0) end,
        dead_at = case when held.dead then parameters.now end,
        losses = 0,
        isolated = false,
        locked_by = null,
        locked_at = null,
        heartbeat_at = null,
        claim_timeout_ms = null,
        lock_expires_at = null,
        claim_token = null,
        progress = null
    from held
    cross join parameters
    where job.id = any (array[held.id])
)

select id, fence, dead
from held;
