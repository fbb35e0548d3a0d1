-- Purpose       List workers, live ones first.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per worker. It is dead if it was marked so, or if its alive_until has
--               passed.

select id, host, pid, version, app_version, queues, tasks, concurrency, started_at, heartbeat_at,
       (select count(*) from reltask_jobs where locked_by = reltask_workers.id) as running,
       case when stopped_at is not null then 'stopped'
            when dead_at is not null or alive_until < :now then 'dead'
            else 'alive' end as state
from reltask_workers
order by case when stopped_at is not null then 2
              when dead_at is not null or alive_until < :now then 1
              else 0 end,
         started_at, id;
