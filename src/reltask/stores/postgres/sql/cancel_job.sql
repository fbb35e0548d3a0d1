-- Purpose       Cancel a job's current slot. A one-off that no worker holds ends here; any other
--               job is marked, and its holder, or the worker that claims it next, ends the slot.
-- Precondition  Not dead; still the fence that was seen, if one is given.
-- Lock order    One row. Waits for it, then checks it again.
-- Returns       One row, unless the job is gone or dead: whether it has ended.
-- See           SQL.md: nullable now, materialized CTE.
--
-- The mark is the number of the slot. If a completion wins, the job is in a later slot, and the
-- mark means nothing; a flag would cancel that slot as well. The next slot of a schedule is
-- computed by a worker, so the slot of a recurring job is ended by one, without a body: it is due
-- now. A one-off that is paused while it runs is resumed, so that a worker can end it whatever
-- becomes of its holder.
--
-- No worker ran the job that ends here, so the ledger row takes the fence that the next claim would
-- have taken. A child has ended for its parent. Its own children are left to cancel_children.sql.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

found as materialized (
    select job.*, job.locked_by is null and job.schedule is null as ends
    from reltask.jobs as job
    where job.id = :id::uuid and job.dead_at is null
      and (:fence::bigint is null or job.fence = :fence::bigint)
    for update of job
),

ledger as (
    insert into reltask.runs (
        job_id, fence, slot_no, task, key, queue, attempt, nominal_time, due_at, finished_at,
        outcome, steps, ends_job
    )
    select found.id, found.fence + 1, found.slot_no, found.task, found.key, found.queue,
           found.attempt, found.next_run_time, found.due_at, parameters.now, 'cancelled',
           nullif(found.steps, 0), true
    from found
    cross join parameters
    where found.ends
),

ended as (
    insert into reltask.child_ends (
        parent_id, slot_no, step, nth, job_id, outcome, ended_at
    )
    select found.parent_id, found.parent_slot, found.parent_step, found.parent_nth, found.id,
           'cancelled', parameters.now
    from found
    cross join parameters
    where found.ends and found.parent_id is not null
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
    where job.id = any (array(select id from found where ends))
),

stopping as (
    update reltask.jobs as job
    set cancel_slot = found.slot_no,
        not_before = case when found.locked_by is null then least(found.due_at, parameters.now)
                          else job.not_before end,
        paused_at = case when found.schedule is null then null else job.paused_at end
    from found
    cross join parameters
    where job.id = any (array[found.id]) and not found.ends
)

select ends as ended
from found;
