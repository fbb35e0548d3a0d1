-- Which claims have expired, and what every worker does about them. For people: workers run
-- stores/postgres/sql/reclaim_jobs.sql themselves, and need no help.
--
-- A claim has expired when no heartbeat has arrived for the lock timeout that was copied at the
-- claim:
--
--     locked_by is not null          a worker holds the job
--     lock_expires_at < now          heartbeat_at + claim_timeout_ms has passed
--
-- This is safe beside a live owner. The row lock checks the condition again: a row that was renewed
-- or completed meanwhile no longer matches, and a row that is being written is skipped.

-- 1. The claims that have expired.
select id, task, locked_by, fence, attempt, heartbeat_at, lock_expires_at
from reltask.jobs
where locked_by is not null and lock_expires_at < statement_timestamp()
order by lock_expires_at;

-- 2. Reclaim all of them by hand.
with
expired as materialized (
    select *
    from reltask.jobs
    where locked_by is not null and lock_expires_at < statement_timestamp()
    order by lock_expires_at
    for update skip locked
),

ledger as (
    insert into reltask.runs (
        job_id, fence, slot_no, task, key, queue, worker, attempt,
        nominal_time, due_at, claimed_at, finished_at, outcome, error
    )
    select id, fence, slot_no, task, key, queue, locked_by, attempt,
           next_run_time, due_at, locked_at, clock_timestamp(), 'lost', 'reclaimed by hand'
    from expired
),

-- A dead child has ended for its parent, whose step counts it once.
ended as (
    insert into reltask.child_ends (
        parent_id, slot_no, step, nth, job_id, outcome, error, ended_at
    )
    select parent_id, parent_slot, parent_step, parent_nth, id, 'failed', 'reclaimed by hand',
           clock_timestamp()
    from expired
    where attempt >= max_attempts and parent_id is not null
    on conflict do nothing
    returning parent_id, slot_no, step
),

marked as (
    insert into reltask.marks (at, kind, job_id, slot_no, name)
    select clock_timestamp(), 'child', parent_id, slot_no, step
    from ended
)

update reltask.jobs as job
set dead_at = case when expired.attempt >= expired.max_attempts then clock_timestamp() end,
    parent_id = case when expired.attempt >= expired.max_attempts then null
                     else expired.parent_id end,
    parent_slot = case when expired.attempt >= expired.max_attempts then null
                       else expired.parent_slot end,
    parent_step = case when expired.attempt >= expired.max_attempts then null
                       else expired.parent_step end,
    parent_nth = case when expired.attempt >= expired.max_attempts then null
                      else expired.parent_nth end,
    losses = expired.losses + 1,
    isolated = expired.losses > 0,
    locked_by = null,
    locked_at = null,
    heartbeat_at = null,
    claim_timeout_ms = null,
    lock_expires_at = null,
    claim_token = null
from expired
where job.id = expired.id
returning job.id, job.task, expired.locked_by as taken_from, job.dead_at is not null as dead;
