-- Purpose       Insert a worker's row, or renew it after an interruption; started_at stays.
-- Precondition  None: an existing row of this id is updated.
-- Lock order    One row.
-- Returns       No rows.
-- See           SQL.md: nullable now, exact types.

insert into reltask.workers as worker (
    id, host, pid, version, app_version, queues, tasks, concurrency, started_at, heartbeat_at,
    alive_until
)
select :id::text, :host::text, :pid::integer, :version::text, :app_version::text,
       pg_catalog.to_json(:queues::text[]), pg_catalog.to_json(:tasks::text[]),
       :concurrency::integer, parameters.now, parameters.now,
       parameters.now + :alive_for::interval
from (select coalesce(:now::timestamptz, statement_timestamp()) as now) as parameters
on conflict (id) do update
set version = excluded.version,
    app_version = excluded.app_version,
    queues = excluded.queues,
    tasks = excluded.tasks,
    concurrency = excluded.concurrency,
    heartbeat_at = excluded.heartbeat_at,
    alive_until = excluded.alive_until,
    idle = false,
    stopped_at = null,
    dead_at = null;
