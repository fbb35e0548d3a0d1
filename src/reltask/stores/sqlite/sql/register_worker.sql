-- Purpose       introduce a worker, or introduce it again: it began when it first did.
-- Precondition  none.
-- Lock order    the whole file: one short write transaction.

insert into reltask_workers (
    id, host, pid, version, app_version, queues, tasks, concurrency, started_at, heartbeat_at, alive_until
)
values (
    :id, :host, :pid, :version, :app_version, :queues, :tasks, :concurrency, :now, :now, :now + :alive_for
)
on conflict (id) do update
   set host         = excluded.host,
       pid          = excluded.pid,
       version      = excluded.version,
       app_version  = excluded.app_version,
       queues       = excluded.queues,
       tasks        = excluded.tasks,
       concurrency  = excluded.concurrency,
       heartbeat_at = excluded.heartbeat_at,
       alive_until  = excluded.alive_until,
       stopped_at   = null,
       dead_at      = null;
