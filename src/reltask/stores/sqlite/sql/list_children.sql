-- Purpose       List the children of a job: those that have ended, and those that have not.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per child, by slot, step and place. If it has ended, task is null, and
--               state is its outcome.

select step, nth, job_id, task, state
from (
    select slot_no, step, nth, job_id, null as task, outcome as state
    from reltask_child_ends
    where parent_id = :job_id
    union all
    select parent_slot, parent_step, parent_nth, id, task,
           case when locked_by is not null then 'claimed'
                when paused_at is not null then 'paused'
                when suspended then 'suspended'
                else 'ready' end
    from reltask_jobs
    where parent_id = :job_id
)
order by slot_no, step, nth;
