-- Purpose       Remove a job, with a ledger row that says so.
-- Precondition  Unclaimed.
-- Lock order    One row. Waits for it, then checks it again.
-- Returns       One row with the id, if the job was removed.
-- See           SQL.md: nullable now, materialized CTE.
--
-- No worker ran the job, so the ledger row takes the fence that the next claim would have taken.

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
        outcome
    )
    select unclaimed.id, unclaimed.fence + 1, unclaimed.slot_no, unclaimed.task, unclaimed.key,
           unclaimed.queue, unclaimed.attempt, unclaimed.next_run_time, unclaimed.due_at,
           parameters.now, 'discarded'
    from unclaimed
    cross join parameters
),

removed as (
    delete from reltask.jobs as job
    where job.id = any (array(select id from unclaimed))
)

select id
from unclaimed;
