-- Purpose       List jobs by due time.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per job.

select id, task, key, queue, priority, state, schedule, slot_no, next_run_time, due_at,
       last_run_time, attempt, max_attempts, fence, locked_by, locked_at, heartbeat_at,
       lock_expires_at, progress, isolated, created_at, steps, parent_id
from (
    select *,
           case when dead_at is not null then 'dead'
                when locked_by is not null then 'claimed'
                when paused_at is not null then 'paused'
                when suspended then 'suspended'
                else 'ready' end as state
    from reltask.jobs
) as job
where (:state::text is null or state = :state::text)
  and (:task::text is null or task = :task::text)
order by due_at, id
limit :limit::integer;
