-- Purpose       Count workers, and jobs by state.
-- Precondition  None. Reads every job.
-- Lock order    Locks nothing.
-- Returns       One row. unknown is a JSON object: due jobs by task name, where no live worker
--               knows the name.
-- See           SQL.md: nullable now, materialized CTE, exact types.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

alive as materialized (
    select worker.tasks
    from reltask.workers as worker
    cross join parameters
    where worker.stopped_at is null and worker.alive_until >= parameters.now
),

known as materialized (
    select distinct name.task
    from alive
    cross join lateral json_array_elements_text(alive.tasks) as name (task)
),

unknown as (
    select job.task, count(*) as jobs
    from reltask.jobs as job
    cross join parameters
    where job.locked_by is null and job.paused_at is null and job.dead_at is null
      and job.due_at <= parameters.now
      and job.task not in (select task from known)
    group by job.task
),

counts as (
    select count(*) filter (
               where claimable and job.due_at > parameters.now and not job.suspended
           ) as ready,
           count(*) filter (
               where claimable and job.due_at > parameters.now and job.suspended
           ) as suspended,
           count(*) filter (where claimable and job.due_at <= parameters.now) as due,
           count(*) filter (where job.locked_by is not null) as running,
           count(*) filter (
               where job.locked_by is not null and job.lock_expires_at < parameters.now
           ) as expired,
           count(*) filter (
               where job.locked_by is null and job.dead_at is null and job.attempt > 0
           ) as failing,
           count(*) filter (
               where job.locked_by is null and job.dead_at is null and job.paused_at is not null
           ) as paused,
           count(*) filter (where job.dead_at is not null) as dead,
           min(job.due_at) filter (where claimable) as next_due
    from reltask.jobs as job
    cross join parameters
    cross join lateral (
        select job.locked_by is null and job.paused_at is null and job.dead_at is null as claimable
    ) as able
)

select parameters.now,
       (select count(*) from alive) as workers_alive,
       counts.ready, counts.suspended, counts.due, counts.running, counts.expired, counts.failing,
       counts.paused, counts.dead, counts.next_due,
       (select coalesce(pg_catalog.json_object_agg(task, jobs), '{}') from unknown) as unknown
from parameters
cross join counts;
