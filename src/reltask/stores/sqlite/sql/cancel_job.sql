-- Purpose       Cancel a job's current slot. A one-off that no worker holds ends here; any other
--               job is marked, and its holder, or the worker that claims it next, ends the slot.
-- Precondition  Not dead, in all statements.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       Statement 4: one row, if the job has ended. Statement 5: one row, if it is marked.
-- See           SQL.md: one writer, mark.
--
-- The mark is the number of the slot. If a completion wins, the job is in a later slot, and the
-- mark means nothing; a flag would cancel that slot as well. The next slot of a schedule is
-- computed by a worker, so the slot of a recurring job is ended by one, without a body: it is due
-- now. A one-off that is paused while it runs is resumed, so that a worker can end it whatever
-- becomes of its holder.
--
-- No worker ran the job that ends here, so the ledger row takes the fence that the next claim would
-- have taken. Its own children are left to cancel_children.sql.

insert into reltask_runs (
    job_id, fence, slot_no, task, key, queue, worker, attempt, nominal_time, due_at, claimed_at,
    finished_at, outcome, steps, ends_job
)
select id, fence + 1, slot_no, task, key, queue, null, attempt, next_run_time, due_at, null, :now,
       'cancelled', nullif(steps, 0), 1
from reltask_jobs
where id = :job_id and (:fence is null or fence = :fence)
  and dead_at is null and locked_by is null and schedule is null;

-- As in complete_jobs.sql.
insert into reltask_marks (at, kind, job_id, slot_no, name)
select :now, 'child', jobs.parent_id, jobs.parent_slot, jobs.parent_step
from reltask_jobs as jobs
join reltask_jobs as parent on parent.id = jobs.parent_id and parent.slot_no = jobs.parent_slot
where jobs.id = :job_id and (:fence is null or jobs.fence = :fence)
  and jobs.dead_at is null and jobs.locked_by is null and jobs.schedule is null
  and not exists (
      select 1
      from reltask_child_ends
      where parent_id = jobs.parent_id and slot_no = jobs.parent_slot
        and step = jobs.parent_step and nth = jobs.parent_nth
  );

insert into reltask_child_ends (parent_id, slot_no, step, nth, job_id, outcome, ended_at)
select jobs.parent_id, jobs.parent_slot, jobs.parent_step, jobs.parent_nth, jobs.id, 'cancelled',
       :now
from reltask_jobs as jobs
join reltask_jobs as parent on parent.id = jobs.parent_id and parent.slot_no = jobs.parent_slot
where jobs.id = :job_id and (:fence is null or jobs.fence = :fence)
  and jobs.dead_at is null and jobs.locked_by is null and jobs.schedule is null
on conflict do nothing;

delete from reltask_jobs
where id = :job_id and (:fence is null or fence = :fence)
  and dead_at is null and locked_by is null and schedule is null
returning id;

update reltask_jobs
set cancel_slot = slot_no,
    not_before = case when locked_by is null then min(due_at, :now) else not_before end,
    paused_at = case when schedule is null then null else paused_at end
where id = :job_id and (:fence is null or fence = :fence)
  and dead_at is null
returning id;
