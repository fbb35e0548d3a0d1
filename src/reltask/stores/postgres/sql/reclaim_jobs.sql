-- Purpose       Take expired claims away: the slot can be claimed again, or the job is dead. From
--               its second lost run in a row on, a job is isolated. A cancelled job is not dead:
--               the next claim ends it.
-- Precondition  Claimed, and heartbeat_at plus the lock timeout copied at the claim is in the past.
-- Lock order    The expired rows. Locked rows are skipped, so the statement never waits.
-- Returns       One row per reclaimed claim: id, fence, task, slot_no, the owner that lost it, and
--               whether the job is dead.
-- See           SQL.md: nullable now, materialized CTE, skip locked, primary-key lookup.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

expired as materialized (
    select job.id, job.fence, job.slot_no, job.task, job.key, job.queue, job.attempt,
           job.next_run_time, job.due_at, job.locked_at, job.locked_by, job.parent_id,
           job.parent_slot, job.parent_step, job.parent_nth,
           'no heartbeat since '
               || to_char(job.heartbeat_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
               as error,
           coalesce(
               job.attempt >= job.max_attempts and job.cancel_slot is distinct from job.slot_no,
               false
           ) as dead
    from reltask.jobs as job
    where job.locked_by is not null and job.lock_expires_at < (select now from parameters)
    order by job.lock_expires_at
    limit :limit::integer
    for update of job skip locked
),

-- A run that is in the ledger already must not prevent the others from being freed.
ledger as (
    insert into reltask.runs (
        job_id, fence, slot_no, task, key, queue, worker, attempt,
        nominal_time, due_at, claimed_at, finished_at, outcome, error
    )
    select expired.id, expired.fence, expired.slot_no, expired.task, expired.key, expired.queue,
           expired.locked_by, expired.attempt, expired.next_run_time, expired.due_at,
           expired.locked_at, parameters.now, 'lost', expired.error
    from expired
    cross join parameters
    on conflict do nothing
),

-- A dead child has ended for its parent. Its parent columns are cleared with it, so that it counts
-- once, whatever is retried later.
ended as (
    insert into reltask.child_ends (
        parent_id, slot_no, step, nth, job_id, outcome, error, ended_at
    )
    select expired.parent_id, expired.parent_slot, expired.parent_step, expired.parent_nth,
           expired.id, 'failed', expired.error, parameters.now
    from expired
    cross join parameters
    where expired.dead and expired.parent_id is not null
    order by expired.parent_id, expired.parent_slot, expired.parent_step, expired.parent_nth
    on conflict do nothing
    returning parent_id, slot_no, step
),

marked as (
    insert into reltask.marks (at, kind, job_id, slot_no, name)
    select parameters.now, 'child', ended.parent_id, ended.slot_no, ended.step
    from ended
    cross join parameters
),

freed as (
    update reltask.jobs as job
    set dead_at = case when expired.dead then parameters.now end,
        parent_id = case when expired.dead then null else job.parent_id end,
        parent_slot = case when expired.dead then null else job.parent_slot end,
        parent_step = case when expired.dead then null else job.parent_step end,
        parent_nth = case when expired.dead then null else job.parent_nth end,
        losses = job.losses + 1,
        isolated = job.losses > 0,
        locked_by = null,
        locked_at = null,
        heartbeat_at = null,
        claim_timeout_ms = null,
        lock_expires_at = null,
        claim_token = null
    from expired
    cross join parameters
    where job.id = any (array[expired.id])
)

select id, fence, task, slot_no, locked_by, dead
from expired;
