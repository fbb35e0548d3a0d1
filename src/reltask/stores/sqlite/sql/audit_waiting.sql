-- Purpose       Find jobs that have waited longer than their lock timeout, and say why.
-- Precondition  None. Reads every unclaimed job once.
-- Lock order    Locks nothing.
-- Returns       One row per kind, task and queue: the number of jobs, and the one that has waited
--               longest.
-- Parameters    :task is null for all tasks; :lock_timeout is in microseconds, for jobs that name
--               none; :now is in microseconds since 1970.
-- See           SQL.md: bare columns.
--
--     unclaimed     due, and a worker that knows the task was idle in its queue: a violation
--     backlog       due, and the workers that know the task were busy
--     unserved      due, and no live worker knows the task or serves its queue
--     unreclaimed   lock expired, and a live worker has not reclaimed the job: a violation
--     expired       lock expired, and there was no live worker to reclaim the job
--
-- Jobs of paused queues and tasks are meant to wait.
--
-- A worker was idle in a queue if it has run for a lock timeout, has a free place, holds no job of
-- the queue, and has ended no run of it within the lock timeout. A job waits from the latest of its
-- due time, its insertion, and the end of its last run.

with
alive as materialized (
    select id, queues, tasks,
           started_at <= :now - :lock_timeout as settled,
           (select count(*) from reltask_jobs where locked_by = reltask_workers.id) < concurrency
               as has_room
    from reltask_workers
    where stopped_at is null and alive_until >= :now
),

busy as materialized (
    select worker, queue
    from reltask_runs
    where finished_at > :now - :lock_timeout
    union
    select locked_by, queue
    from reltask_jobs
    where locked_by is not null
),

serving as materialized (
    select name.value as task, place.value as queue,
           max(alive.settled and alive.has_room and busy.worker is null) as idle
    from alive
    join json_each(alive.tasks) as name
    join json_each(alive.queues) as place
    left join busy on busy.worker = alive.id and busy.queue = place.value
    group by name.value, place.value
),

due as (
    select jobs.id, jobs.task, jobs.queue,
           max(jobs.due_at, jobs.created_at, coalesce(runs.finished_at, 0)) as since,
           coalesce(jobs.lock_timeout_ms * 1000, :lock_timeout) as patience
    from reltask_jobs as jobs
    left join reltask_runs as runs on runs.job_id = jobs.id and runs.fence = jobs.fence
    where jobs.locked_by is null and jobs.paused_at is null and jobs.dead_at is null
      and jobs.due_at < :now
      and jobs.queue not in (select name from reltask_pauses where kind = 'queue')
      and jobs.task not in (select name from reltask_pauses where kind = 'task')
),

waiting as (
    select case when serving.idle then 'unclaimed'
                when serving.task is null then 'unserved'
                else 'backlog' end as kind,
           due.task, due.queue, due.id, due.since
    from due
    left join serving on serving.task = due.task and serving.queue = due.queue
    where due.since < :now - due.patience
    union all
    select case when exists (select 1 from alive where settled) then 'unreclaimed'
                else 'expired' end,
           task, queue, id, lock_expires_at
    from reltask_jobs
    where locked_by is not null
      and lock_expires_at < :now - coalesce(claim_timeout_ms * 1000, :lock_timeout)
)

select kind, task, queue, count(*) as jobs, id as job_id, min(since) as since
from waiting
where :task is null or task = :task
group by kind, task, queue
order by task, queue, kind;
