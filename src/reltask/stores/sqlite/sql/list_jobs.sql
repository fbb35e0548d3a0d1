-- Purpose       List jobs by due time.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per job.

select *
from (
    select id, task, key, queue, priority, schedule, slot_no, next_run_time, due_at, last_run_time,
           attempt, max_attempts, fence, locked_by, locked_at, heartbeat_at, lock_expires_at,
           progress, isolated, created_at, steps, parent_id,
           case when dead_at is not null then 'dead'
                when locked_by is not null then 'claimed'
                when paused_at is not null then 'paused'
                when suspended then 'suspended'
                else 'ready' end as state
    from reltask_jobs
)
where (:state is null or state = :state)
  and (:task is null or task = :task)
order by due_at, id
limit :limit;
