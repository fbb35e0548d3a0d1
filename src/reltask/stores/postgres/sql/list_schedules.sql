-- Purpose       One page of the recurring jobs, by task and key.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per recurring job.
-- Parameters    :after_task and :after_id are those of the last row of the page before, or null.

select job.id, job.task, job.key, job.queue, job.priority,
       case when job.dead_at is not null then 'dead'
            when job.locked_by is not null then 'claimed'
            when job.paused_at is not null then 'paused'
            when job.suspended then 'suspended'
            else 'ready' end as state,
       job.schedule, job.slot_no, job.next_run_time, job.due_at, job.last_run_time, job.attempt,
       job.max_attempts, job.fence, job.locked_by, job.locked_at, job.heartbeat_at,
       job.lock_expires_at, job.progress, job.isolated, job.created_at, job.steps, job.parent_id
from reltask.jobs as job
where job.schedule is not null
  and (job.task, job.id) > (
      coalesce(:after_task::text, ''),
      coalesce(:after_id::uuid, uuid '00000000-0000-0000-0000-000000000000')
  )
order by job.task, job.id
limit :limit::integer;
