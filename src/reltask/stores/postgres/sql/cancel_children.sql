-- Purpose       End jobs whose parent's slot has ended: no step waits for them any more. Those that
--               run are cancelled: their holders stop them.
-- Precondition  A parent that has no row, or is in a later slot.
-- Lock order    The children. Locked rows are skipped, so the statement never waits. No row of a
--               parent is locked: a parent locked before its children, and a child's end, which
--               would need them in the other order, could wait for each other.
-- Returns       One row per child: id, and whether it has ended; else it was cancelled now.
-- Parameters    :parents are the parents to look at; null: all.
-- See           SQL.md: nullable now, materialized CTE, skip locked, filtered index.
--
-- The recursion goes from one parent to the next with one index seek each, so the cost depends on
-- the number of parents, not of children. A parent that is gone, or past the slot, in the snapshot
-- stays so; the child itself is checked again under its lock.
--
-- No worker ran the job, so the ledger row takes the fence that the next claim would have taken.

with recursive
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

parents (id) as (
    (
        select job.parent_id
        from reltask.jobs as job
        where job.parent_id is not null and :parents::uuid[] is null
        order by job.parent_id
        limit 1
    )
    union all
    select following.parent_id
    from parents
    cross join lateral (
        select job.parent_id
        from reltask.jobs as job
        where job.parent_id > parents.id
        order by job.parent_id
        limit 1
    ) as following
),

orphans as materialized (
    select child.*
    from (
        select id from parents
        union all
        select id from pg_catalog.unnest(:parents::uuid[]) as given (id)
    ) as one
    left join reltask.jobs as parent on parent.id = any (array[one.id])
    cross join lateral (
        select job.id, job.fence, job.slot_no, job.task, job.key, job.queue, job.attempt,
               job.next_run_time, job.due_at, job.steps, job.locked_by is null as ends
        from reltask.jobs as job
        where job.parent_id = one.id
          and (job.locked_by is null or job.cancel_slot is distinct from job.slot_no)
          -- of a parent that is gone: all of them
          and job.parent_slot < coalesce(parent.slot_no, 9223372036854775807)
        limit :limit::integer
        for update of job skip locked
    ) as child
    limit :limit::integer
),

ledger as (
    insert into reltask.runs (
        job_id, fence, slot_no, task, key, queue, attempt, nominal_time, due_at, finished_at,
        outcome, error, steps, ends_job
    )
    select orphans.id, orphans.fence + 1, orphans.slot_no, orphans.task, orphans.key,
           orphans.queue, orphans.attempt, orphans.next_run_time, orphans.due_at, parameters.now,
           'cancelled', 'its parent has ended', nullif(orphans.steps, 0), true
    from orphans
    cross join parameters
    where orphans.ends
),

removed as (
    delete from reltask.jobs as job
    using orphans
    where job.id = any (array[orphans.id]) and orphans.ends
),

stopping as (
    update reltask.jobs as job
    set cancel_slot = orphans.slot_no,
        paused_at = null
    from orphans
    where job.id = any (array[orphans.id]) and not orphans.ends
)

select id, ends
from orphans;
