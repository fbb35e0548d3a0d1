-- Purpose       workers, living ones first, for people. Dead: marked so, or without a sign of life past its promise.
-- Precondition  none; reads only.
-- Lock order    no locks.

select worker.id, worker.host, worker.pid, worker.version, worker.app_version, worker.queues, worker.tasks,
       worker.concurrency,
       (select count(*) from reltask.jobs as job where job.locked_by = worker.id) as running,
       worker.started_at, worker.heartbeat_at, known.state
from reltask.workers as worker
cross join lateral (
    select case when worker.stopped_at is not null then 'stopped'
                when worker.dead_at is not null
                  or worker.alive_until < coalesce(:now::timestamptz, statement_timestamp()) then 'dead'
                else 'alive' end as state
) as known
order by known.state = 'stopped', known.state = 'dead', worker.started_at, worker.id;
