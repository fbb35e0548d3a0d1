-- Purpose       workers, living ones first, for people.
-- Precondition  none.
-- Lock order    none: reads the last committed state.

select id, host, pid, version, app_version, queues, tasks, concurrency, started_at, heartbeat_at,
       (select count(*) from reltask_jobs where locked_by = reltask_workers.id) as running,
       case when stopped_at is not null then 'stopped'
            when alive_until < :now     then 'silent'
            else 'alive' end as state
  from reltask_workers
 order by case when stopped_at is not null then 2 when alive_until < :now then 1 else 0 end, started_at, id;
