-- Purpose       record failed runs: the slot stays and is tried again after its delay, or is dead at the last attempt.
-- Precondition  id, owner and fence still match; what does not match is left alone and missing from the answer.
-- Lock order    ids ascending; waits for a row held by another statement and checks it again afterwards.
--
-- Each row is found by its id. "Any of this one" says to people what "equal" says; the planner can only look it up, even
-- where the statistics say that there is nothing to walk. "Is not distinct from" keeps it from walking all that is held.
--
-- A delay is so many seconds: as days it would be added to the date in the session's time zone, and be an hour off when
-- its clocks change.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

held as materialized (
    select job.id, job.fence, job.slot_no, job.task, job.key, job.queue, job.attempt, job.next_run_time, job.due_at,
           job.locked_at, coalesce(job.attempt >= job.max_attempts, false) as dead, given.error, given.delay
    from (
        select *
        from unnest(
            :ids::uuid[], :fences::bigint[], :errors::text[], :delays::interval[]
        ) as one (id, fence, error, delay)
        order by id
    ) as given
    cross join lateral (
        select *
        from reltask.jobs
        where id = given.id and fence = given.fence and locked_by is not distinct from :worker::text
        for update
    ) as job
),

ledger as (
    insert into reltask.runs (
        job_id, fence, slot_no, task, key, queue, worker, attempt,
        nominal_time, due_at, claimed_at, finished_at, outcome, error)
    select held.id, held.fence, held.slot_no, held.task, held.key, held.queue, :worker::text, held.attempt,
           held.next_run_time, held.due_at, held.locked_at, parameters.now, 'failed', held.error
    from held
    cross join parameters
),

kept as (
    update reltask.jobs as job
    set not_before = parameters.now + extract(epoch from held.delay) * interval '1 second',
        dead_at = case when held.dead then parameters.now end,
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
