-- Purpose       workers, living ones first, for people.
-- Precondition  none; reads only.
-- Lock order    no locks.

select worker.id, worker.host, worker.pid, worker.version, worker.app_version, worker.queues, worker.tasks,
       worker.concurrency,
       (select count(*) from reltask.jobs as job where job.locked_by = worker.id) as running,
       worker.started_at, worker.heartbeat_at,
       case when worker.stopped_at is not null then 'stopped'
            when worker.alive_until < coalesce(:now::timestamptz, statement_timestamp()) then 'silent'
            else 'alive' end as state
from reltask.workers as worker
order by worker.stopped_at is not null, worker.alive_until < coalesce(:now::timestamptz, statement_timestamp()),
         worker.started_at, worker.id;
