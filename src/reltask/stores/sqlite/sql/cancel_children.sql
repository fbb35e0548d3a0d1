-- Purpose       End jobs whose parent has ended the slot that waited for them. Those that run are
--               cancelled: their holders stop them.
-- Precondition  The parent has no row, or is in a later slot.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       Statement 2: one row per removed job. Statement 3: one per job that runs and is
--               cancelled now.
-- Parameters    :parents are the parents to look at, as JSON; null: all.
-- See           SQL.md: one writer, filtered index, JSON batch.
--
-- No worker ran the job, so the ledger row takes the fence that the next claim would have taken. No
-- step waits for the end of these children, so none is reported.

with
left_over as (
    select child.id
    from reltask_jobs as child
    left join reltask_jobs as parent on parent.id = child.parent_id
    where child.parent_id is not null
      and (:parents is null or child.parent_id in (select value from json_each(:parents)))
      and child.locked_by is null
      and (parent.id is null or parent.slot_no > child.parent_slot)
    order by child.parent_id, child.rowid
    limit :limit
)

insert into reltask_runs (
    job_id, fence, slot_no, task, key, queue, worker, attempt, nominal_time, due_at, claimed_at,
    finished_at, outcome, error, steps, ends_job
)
select id, fence + 1, slot_no, task, key, queue, null, attempt, next_run_time, due_at, null, :now,
       'cancelled', 'its parent has ended', nullif(steps, 0), 1
from reltask_jobs
where id in (select id from left_over);

with
left_over as (
    select child.id
    from reltask_jobs as child
    left join reltask_jobs as parent on parent.id = child.parent_id
    where child.parent_id is not null
      and (:parents is null or child.parent_id in (select value from json_each(:parents)))
      and child.locked_by is null
      and (parent.id is null or parent.slot_no > child.parent_slot)
    order by child.parent_id, child.rowid
    limit :limit
)

delete from reltask_jobs
where id in (select id from left_over)
returning id;

with
left_over as (
    select child.id
    from reltask_jobs as child
    left join reltask_jobs as parent on parent.id = child.parent_id
    where child.parent_id is not null
      and (:parents is null or child.parent_id in (select value from json_each(:parents)))
      and child.locked_by is not null and child.cancel_slot is not child.slot_no
      and (parent.id is null or parent.slot_no > child.parent_slot)
    order by child.parent_id, child.rowid
    limit :limit
)

update reltask_jobs
set cancel_slot = slot_no,
    paused_at = null
where id in (select id from left_over)
returning id;
