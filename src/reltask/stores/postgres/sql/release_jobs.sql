-- Purpose       Release claims unfinished: the slot stays, and the attempt is given back. If it is
--               counted, it is not, and the job is dead at its last attempt. A cancelled job is
--               due at once, so that the next claim ends it.
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
           job.next_run_time, job.due_at, job.locked_at, job.parent_id, job.parent_slot,
           job.parent_step, job.parent_nth, given.outcome, given.error, given.delay, given.counted,
           cancel.pending as cancelled,
           coalesce(
               given.counted and job.attempt >= job.max_attempts and not cancel.pending, false
           ) as dead
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
    cross join lateral (
        select coalesce(job.cancel_slot = job.slot_no, false) as pending
    ) as cancel
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

-- A dead child has ended for its parent. Its parent columns are cleared with it, so that it counts
-- once, whatever is retried later.
ended as (
    insert into reltask.child_ends (
        parent_id, slot_no, step, nth, job_id, outcome, error, ended_at
    )
    select held.parent_id, held.parent_slot, held.parent_step, held.parent_nth, held.id,
           'failed', held.error, parameters.now
    from held
    cross join parameters
    where held.dead and held.parent_id is not null
    order by held.parent_id, held.parent_slot, held.parent_step, held.parent_nth
    on conflict do nothing
    returning parent_id, slot_no, step
),

marked as (
    insert into reltask.marks (at, kind, job_id, slot_no, name)
    select parameters.now, 'child', ended.parent_id, ended.slot_no, ended.step
    from ended
    cross join parameters
),

kept as (
    update reltask.jobs as job
    set not_before = case when held.cancelled then least(job.due_at, parameters.now)
                          else coalesce(
                              parameters.now
                                  + extract(epoch from held.delay)::float8 * interval '1 second',
                              job.not_before
                          ) end,
        attempt = case when held.counted then held.attempt else greatest(held.attempt - 1, 0) end,
        dead_at = case when held.dead then parameters.now end,
        parent_id = case when held.dead then null else job.parent_id end,
        parent_slot = case when held.dead then null else job.parent_slot end,
        parent_step = case when held.dead then null else job.parent_step end,
        parent_nth = case when held.dead then null else job.parent_nth end,
        losses = 0,
        isolated = false,
        locked_by = null,
        locked_at = null,
        heartbeat_at = null,
        claim_timeout_ms = null,
        lock_expires_at = null,
        claim_token = null
    from held
    cross join parameters
    where job.id = any (array[held.id])
)

select id, fence, dead
from held;
