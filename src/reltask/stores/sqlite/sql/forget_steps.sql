-- Purpose       Remove records of steps, so that they run again.
-- Precondition  The job is unclaimed, in all statements; the step is of its current slot.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       Statement 4: one row per removed step.
-- Parameters    :and_after also removes the steps that were started after this one.
-- See           SQL.md: one writer.

-- Signals that they have consumed wait again.
with
forgotten as materialized (
    select other.job_id, other.slot_no, other.name
    from reltask_jobs as jobs
    join reltask_steps as named on named.job_id = jobs.id and named.slot_no = jobs.slot_no
    join reltask_steps as other on other.job_id = jobs.id and other.slot_no = jobs.slot_no
    where jobs.id = :job_id
      and jobs.locked_by is null
      and named.name = :step
      and (other.name = :step or (:and_after and other.started_at > named.started_at))
)

update reltask_signals
set consumed_by = null
from forgotten
where reltask_signals.job_id = forgotten.job_id
  and reltask_signals.slot_no = forgotten.slot_no
  and reltask_signals.consumed_by = forgotten.name;

with
forgotten as materialized (
    select other.job_id, other.slot_no, other.name
    from reltask_jobs as jobs
    join reltask_steps as named on named.job_id = jobs.id and named.slot_no = jobs.slot_no
    join reltask_steps as other on other.job_id = jobs.id and other.slot_no = jobs.slot_no
    where jobs.id = :job_id
      and jobs.locked_by is null
      and named.name = :step
      and (other.name = :step or (:and_after and other.started_at > named.started_at))
)

delete from reltask_child_ends
where (parent_id, slot_no, step) in (select job_id, slot_no, name from forgotten);

with
forgotten as materialized (
    select other.job_id, other.slot_no, other.name
    from reltask_jobs as jobs
    join reltask_steps as named on named.job_id = jobs.id and named.slot_no = jobs.slot_no
    join reltask_steps as other on other.job_id = jobs.id and other.slot_no = jobs.slot_no
    where jobs.id = :job_id
      and jobs.locked_by is null
      and named.name = :step
      and (other.name = :step or (:and_after and other.started_at > named.started_at))
)

update reltask_jobs
set steps = steps - (select count(*) from forgotten),
    not_before = case when suspended then min(due_at, :now) else not_before end
where id in (select job_id from forgotten);

with
forgotten as materialized (
    select other.job_id, other.slot_no, other.name
    from reltask_jobs as jobs
    join reltask_steps as named on named.job_id = jobs.id and named.slot_no = jobs.slot_no
    join reltask_steps as other on other.job_id = jobs.id and other.slot_no = jobs.slot_no
    where jobs.id = :job_id
      and jobs.locked_by is null
      and named.name = :step
      and (other.name = :step or (:and_after and other.started_at > named.started_at))
)

delete from reltask_steps
where (job_id, slot_no, name) in (select job_id, slot_no, name from forgotten)
returning name;
