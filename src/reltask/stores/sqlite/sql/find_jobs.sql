-- Purpose       Find the jobs that have a key, of any task.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per job, by task.
-- See           SQL.md: filtered index.
--
-- The index of names begins with the task. The recursion goes from one task to the next, with one
-- index seek each.

with recursive
named (task) as (
    select min(first.task)
    from reltask_jobs as first
    where first.schedule is not null or first.key is not null
    union all
    select (
        select min(next.task)
        from reltask_jobs as next
        where next.task > named.task and (next.schedule is not null or next.key is not null)
    )
    from named
    where named.task is not null
)

select job.id, job.task, job.key, job.queue, job.priority,
       case when job.dead_at is not null then 'dead'
            when job.locked_by is not null then 'claimed'
            when job.paused_at is not null then 'paused'
            when job.suspended then 'suspended'
            else 'ready' end as state,
       job.schedule, job.slot_no, job.next_run_time, job.due_at, job.last_run_time, job.attempt,
       job.max_attempts, job.fence, job.locked_by, job.locked_at, job.heartbeat_at,
       job.lock_expires_at, job.progress, job.isolated, job.created_at, job.steps, job.parent_id
from named
cross join reltask_jobs as job
  on job.task = named.task and coalesce(job.key, '') = :key
 and (job.schedule is not null or job.key is not null)
order by job.task
limit :limit;
