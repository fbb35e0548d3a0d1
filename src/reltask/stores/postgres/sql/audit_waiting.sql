-- Purpose       Find jobs that have waited longer than their lock timeout, and say why.
-- Precondition  None. Reads every unclaimed job once.
-- Lock order    Locks nothing.
-- Returns       One row per kind, task and queue: the number of jobs, and the one that has waited
--               longest.
-- Parameters    :task is null for all tasks; :lock_timeout is an interval, for jobs that name none.
-- See           SQL.md: nullable now, exact types.
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
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

held as materialized (
    select locked_by as worker, count(*) as jobs
    from reltask.jobs
    where locked_by is not null
    group by locked_by
),

alive as materialized (
    select worker.id, worker.queues, worker.tasks,
           worker.started_at <= parameters.now - :lock_timeout::interval as settled,
           coalesce((select held.jobs from held where held.worker = worker.id), 0)
               < worker.concurrency as has_room
    from reltask.workers as worker
    cross join parameters
    where worker.stopped_at is null and worker.alive_until >= parameters.now
),

busy as materialized (
    select distinct run.worker, run.queue
    from parameters
    join reltask.runs as run on run.finished_at > parameters.now - :lock_timeout::interval
    union
    select job.locked_by, job.queue
    from reltask.jobs as job
    where job.locked_by is not null
),

serving as materialized (
    select name.task, place.queue,
           bool_or(alive.settled and alive.has_room and busy.worker is null) as idle
    from alive
    cross join lateral json_array_elements_text(alive.tasks) as name (task)
    cross join lateral json_array_elements_text(alive.queues) as place (queue)
    left join busy on busy.worker = alive.id and busy.queue = place.queue
    group by name.task, place.queue
),

due as (
    select job.id, job.task, job.queue,
           greatest(job.due_at, job.created_at, run.finished_at) as since,
           coalesce(job.lock_timeout_ms::float8 * interval '1 millisecond', :lock_timeout::interval)
               as patience
    from reltask.jobs as job
    cross join parameters
    left join reltask.runs as run on run.job_id = job.id and run.fence = job.fence
    where job.locked_by is null and job.paused_at is null and job.dead_at is null
      and job.due_at < parameters.now
      and not exists (select from reltask.pauses where kind = 'queue' and name = job.queue)
      and not exists (select from reltask.pauses where kind = 'task' and name = job.task)
),

waiting as (
    select case when serving.idle then 'unclaimed'
                when serving.task is null then 'unserved'
                else 'backlog' end as kind,
           due.task, due.queue, due.id, due.since
    from due
    cross join parameters
    left join serving on serving.task = due.task and serving.queue = due.queue
    where due.since < parameters.now - due.patience
    union all
    select case when exists (select from alive where settled) then 'unreclaimed'
                else 'expired' end,
           job.task, job.queue, job.id, job.lock_expires_at
    from reltask.jobs as job
    cross join parameters
    where job.locked_by is not null
      and job.lock_expires_at
          < parameters.now - coalesce(
              job.claim_timeout_ms::float8 * interval '1 millisecond', :lock_timeout::interval
          )
)

select kind, task, queue, count(*) as jobs,
       (pg_catalog.array_agg(id order by since, id))[1] as job_id,
       min(since) as since
from waiting
where :task::text is null or task = :task::text
group by kind, task, queue
order by task, queue, kind;
