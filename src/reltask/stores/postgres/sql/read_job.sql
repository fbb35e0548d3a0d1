-- Purpose       Read one job.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row, if the job exists.

select id, task, key, queue, priority,
       case when dead_at is not null then 'dead'
            when locked_by is not null then 'claimed'
            when paused_at is not null then 'paused'
            when suspended then 'suspended'
            else 'ready' end as state,
       schedule, slot_no, next_run_time, due_at, last_run_time, attempt, max_attempts, fence,
       locked_by, locked_at, heartbeat_at, lock_expires_at, progress, isolated, created_at,
       steps, parent_id
from reltask.jobs
where id = :id::uuid;
