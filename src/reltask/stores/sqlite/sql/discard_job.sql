-- Purpose       Remove a job, with a ledger row that says so, and tell a step that waits for it.
-- Precondition  Unclaimed, in all statements.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row with the id, if the job was removed.
-- See           SQL.md: one writer, mark.
--
-- No worker ran the job, so the ledger row takes the fence that the next claim would have taken.

insert into reltask_runs (
    job_id, fence, slot_no, task, key, queue, worker, attempt, nominal_time, due_at, claimed_at,
    finished_at, outcome, steps, ends_job
)
select id, fence + 1, slot_no, task, key, queue, null, attempt, next_run_time, due_at, null, :now,
       'discarded', nullif(steps, 0), 1
from reltask_jobs
where id = :job_id
  and locked_by is null;

-- As in complete_jobs.sql.
insert into reltask_marks (at, kind, job_id, slot_no, name)
select :now, 'child', jobs.parent_id, jobs.parent_slot, jobs.parent_step
from reltask_jobs as jobs
join reltask_jobs as parent on parent.id = jobs.parent_id and parent.slot_no = jobs.parent_slot
where jobs.id = :job_id
  and jobs.locked_by is null
  and not exists (
      select 1
      from reltask_child_ends
      where parent_id = jobs.parent_id and slot_no = jobs.parent_slot
        and step = jobs.parent_step and nth = jobs.parent_nth
  );

insert into reltask_child_ends (parent_id, slot_no, step, nth, job_id, outcome, ended_at)
select jobs.parent_id, jobs.parent_slot, jobs.parent_step, jobs.parent_nth, jobs.id, 'discarded',
       :now
from reltask_jobs as jobs
join reltask_jobs as parent on parent.id = jobs.parent_id and parent.slot_no = jobs.parent_slot
where jobs.id = :job_id
  and jobs.locked_by is null
on conflict do nothing;

delete from reltask_jobs
where id = :job_id
  and locked_by is null
returning id;
