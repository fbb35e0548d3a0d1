-- Purpose       Find the jobs that have a key, of any task.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per job, by task.
-- See           SQL.md: filtered index.
--
-- The index of names begins with the task. The recursion goes from one task to the next, with one
-- index seek each.

with recursive
named as (
    (
        select task
        from reltask.jobs
        where schedule is not null or key is not null
        order by task
        limit 1
    )
    union all
    select head.task
    from named
    cross join lateral (
        select task
        from reltask.jobs
        where task > named.task and (schedule is not null or key is not null)
        order by task
        limit 1
    ) as head
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
cross join lateral (
    select *
    from reltask.jobs as one
    where one.task = named.task and coalesce(one.key, '') = :key::text
      and (one.schedule is not null or one.key is not null)
    limit 1
) as job
order by job.task
limit :limit::integer;
