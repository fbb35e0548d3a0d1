-- Purpose       List workers, live ones first.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per worker. It is dead if it was marked so, or if its alive_until has
--               passed.
-- See           SQL.md: nullable now.

with
held as materialized (
    select locked_by as worker, count(*) as jobs
    from reltask.jobs
    where locked_by is not null
    group by locked_by
)

select worker.id, worker.host, worker.pid, worker.version, worker.app_version, worker.queues,
       worker.tasks, worker.concurrency,
       coalesce((select held.jobs from held where held.worker = worker.id), 0) as running,
       worker.started_at, worker.heartbeat_at, known.state
from reltask.workers as worker
cross join lateral (
    select case when worker.stopped_at is not null then 'stopped'
                when worker.dead_at is not null
                     or worker.alive_until < coalesce(:now::timestamptz, statement_timestamp())
                then 'dead'
                else 'alive' end as state
) as known
order by known.state = 'stopped', known.state = 'dead', worker.started_at, worker.id;
