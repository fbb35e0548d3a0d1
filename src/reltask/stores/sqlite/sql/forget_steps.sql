-- Purpose       Remove records of steps, so that they run again.
-- Precondition  The job is unclaimed, in all statements; the step is of its current slot. No child
--               of the steps lives.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       Statement 1: one row per removed step.
-- Parameters    :and_after also removes the steps that were started after this one.
-- See           SQL.md: one writer.
--
-- While a child lives, nothing is removed: its end would take the place of the new child's, which
-- would then not be counted.

with
forgotten as materialized (
    select other.job_id, other.slot_no, other.name
    from reltask_jobs as jobs
    join reltask_steps as first on first.job_id = jobs.id and first.slot_no = jobs.slot_no
    join reltask_steps as other on other.job_id = jobs.id and other.slot_no = jobs.slot_no
    where jobs.id = :job_id
      and jobs.locked_by is null
      and first.name = :step
      and (other.name = :step or (:and_after and other.started_at > first.started_at))
)

delete from reltask_steps
where (job_id, slot_no, name) in (select job_id, slot_no, name from forgotten)
  and not exists (
      select 1
      from forgotten
      join reltask_jobs as child
          on child.parent_id = forgotten.job_id and child.parent_slot = forgotten.slot_no
          and child.parent_step = forgotten.name
  )
returning name;

-- What belonged to the removed steps is found by their absence. Signals that they have consumed
-- wait again.
update reltask_signals
set consumed_by = null
from reltask_jobs as jobs
where jobs.id = :job_id
  and jobs.locked_by is null
  and reltask_signals.job_id = jobs.id and reltask_signals.slot_no = jobs.slot_no
  and reltask_signals.consumed_by is not null
  and not exists (
      select 1
      from reltask_steps
      where job_id = jobs.id and slot_no = jobs.slot_no and name = reltask_signals.consumed_by
  );

-- The ends of their children are forgotten, with the marks that they have left.
delete from reltask_child_ends
where (parent_id, slot_no) in (
    select id, slot_no from reltask_jobs where id = :job_id and locked_by is null
)
  and not exists (
      select 1
      from reltask_steps as steps
      where steps.job_id = reltask_child_ends.parent_id
        and steps.slot_no = reltask_child_ends.slot_no and steps.name = reltask_child_ends.step
  );

delete from reltask_marks
where kind = 'child'
  and (job_id, slot_no) in (
      select id, slot_no from reltask_jobs where id = :job_id and locked_by is null
  )
  and not exists (
      select 1
      from reltask_steps as steps
      where steps.job_id = reltask_marks.job_id and steps.slot_no = reltask_marks.slot_no
        and steps.name = reltask_marks.name
  );

update reltask_jobs
set steps = (
        select count(*)
        from reltask_steps as step
        where step.job_id = reltask_jobs.id and step.slot_no = reltask_jobs.slot_no
    ),
    not_before = case when suspended then min(due_at, :now) else not_before end
where id = :job_id
  and locked_by is null
  and steps <> (
      select count(*)
      from reltask_steps as step
      where step.job_id = reltask_jobs.id and step.slot_no = reltask_jobs.slot_no
  );
