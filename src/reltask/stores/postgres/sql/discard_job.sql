-- Purpose       Remove a job, with a ledger row that says so.
-- Precondition  Unclaimed.
-- Lock order    One row. Waits for it, then checks it again.
-- Returns       One row with the id, if the job was removed.
-- See           SQL.md: nullable now, materialized CTE.
--
-- No worker ran the job, so the ledger row takes the fence that the next claim would have taken. A
-- job that is a child has ended for its parent; if it was dead before, that was its end. Its own
-- children are left to cancel_children.sql: a parent is never locked before its children.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

unclaimed as materialized (
    select job.*
    from reltask.jobs as job
    where job.id = :id::uuid and job.locked_by is null
    for update of job
),

ledger as (
    insert into reltask.runs (
        job_id, fence, slot_no, task, key, queue, attempt, nominal_time, due_at, finished_at,
        outcome, steps, ends_job
    )
    select unclaimed.id, unclaimed.fence + 1, unclaimed.slot_no, unclaimed.task, unclaimed.key,
           unclaimed.queue, unclaimed.attempt, unclaimed.next_run_time, unclaimed.due_at,
           parameters.now, 'discarded', nullif(unclaimed.steps, 0), true
    from unclaimed
    cross join parameters
),

ended as (
    insert into reltask.child_ends (
        parent_id, slot_no, step, nth, job_id, outcome, ended_at
    )
    select unclaimed.parent_id, unclaimed.parent_slot, unclaimed.parent_step,
           unclaimed.parent_nth, unclaimed.id, 'discarded', parameters.now
    from unclaimed
    cross join parameters
    where unclaimed.parent_id is not null
    order by unclaimed.parent_id, unclaimed.parent_slot, unclaimed.parent_step, unclaimed.parent_nth
    on conflict do nothing
    returning parent_id, slot_no, step
),

marked as (
    insert into reltask.marks (at, kind, job_id, slot_no, name)
    select parameters.now, 'child', ended.parent_id, ended.slot_no, ended.step
    from ended
    cross join parameters
),

removed as (
    delete from reltask.jobs as job
    where job.id = any (array(select id from unclaimed))
)

select id
from unclaimed;
