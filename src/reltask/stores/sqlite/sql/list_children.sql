-- Purpose       List the children of a job: those that have ended, and those that have not.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per child of the newest slot that has any, by step and place.

with
children (slot_no, step, nth, job_id, task, state) as (
    select slot_no, step, nth, job_id, null, outcome
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

select step, nth, job_id, task, state
from children
where slot_no = (select max(slot_no) from children)
order by step, nth;
