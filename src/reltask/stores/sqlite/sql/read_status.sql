-- Purpose       Count workers, and jobs by state.
-- Precondition  None. Reads every job.
-- Lock order    Locks nothing.
-- Returns       Statement 1: one row of counts. Statement 2: one row per task name that has due
--               jobs and that no live worker knows.

select :now as now,
       (
           select count(*)
           from reltask_workers
           where stopped_at is null and alive_until >= :now
       ) as workers_alive,
       count(*) filter (where claimable and due_at > :now and not suspended) as ready,
       count(*) filter (where claimable and due_at > :now and suspended) as suspended,
       count(*) filter (where claimable and due_at <= :now) as due,
       count(*) filter (where locked_by is not null) as running,
       count(*) filter (where lock_expires_at < :now) as expired,
       count(*) filter (where locked_by is null and dead_at is null and attempt > 0) as failing,
       count(*) filter (where locked_by is null and dead_at is null and paused_at is not null)
           as paused,
       count(*) filter (where dead_at is not null) as dead,
       min(due_at) filter (where claimable) as next_due
from (
    select due_at, locked_by, lock_expires_at, attempt, paused_at, dead_at, suspended,
           locked_by is null and paused_at is null and dead_at is null as claimable
    from reltask_jobs
);

-- Due jobs by task name, where no live worker knows the name.
select task, count(*) as jobs
from reltask_jobs
where locked_by is null and paused_at is null and dead_at is null
  and due_at <= :now
  and task not in (
      select known.value
      from reltask_workers as workers
      join json_each(workers.tasks) as known
      where workers.stopped_at is null and workers.alive_until >= :now
  )
group by task
order by task;
