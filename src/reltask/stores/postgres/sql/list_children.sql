-- Purpose       List the children of a job, by step and place: those that have ended, and those
--               that have not.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per child. task is null if it has ended; then state is its outcome.

select step, nth, job_id, task, state
from (
    select child.slot_no, child.step, child.nth, child.job_id, null as task, child.outcome as state
    from reltask.child_ends as child
    where child.parent_id = :job_id::uuid
    union all
    select job.parent_slot, job.parent_step, job.parent_nth, job.id, job.task,
           case when job.dead_at is not null then 'dead'
                when job.locked_by is not null then 'claimed'
                when job.paused_at is not null then 'paused'
                when job.suspended then 'suspended'
                else 'ready' end
    from reltask.jobs as job
    where job.parent_id = :job_id::uuid
) as child
order by slot_no, step, nth;
