-- Purpose       Insert a worker's row, or renew it after an interruption; started_at stays.
-- Precondition  None: an existing row of this id is updated.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       No rows.
-- See           SQL.md: one writer.

insert into reltask_workers (
    id, host, pid, version, app_version, queues, tasks, concurrency, started_at, heartbeat_at,
    alive_until
)
values (
    :id, :host, :pid, :version, :app_version, :queues, :tasks, :concurrency, :now, :now,
    :now + :alive_for
)
on conflict (id) do update
set host = excluded.host,
    pid = excluded.pid,
    version = excluded.version,
    app_version = excluded.app_version,
    queues = excluded.queues,
    tasks = excluded.tasks,
    concurrency = excluded.concurrency,
    heartbeat_at = excluded.heartbeat_at,
    alive_until = excluded.alive_until,
    idle = 0,
    stopped_at = null,
    dead_at = null;
