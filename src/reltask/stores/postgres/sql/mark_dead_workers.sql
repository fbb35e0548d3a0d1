-- Purpose       Mark workers as dead whose alive_until has passed.
-- Precondition  Neither stopped nor marked yet. If a term is given, the lease is still held under
--               it.
-- Lock order    The lease's row in share mode, then workers. Locked rows are skipped: such a worker
--               is sending a heartbeat.
-- Returns       One row per marked worker: its id.
-- See           SQL.md: nullable now, materialized CTE, leader check, skip locked.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

leader as materialized (
    select lease.name
    from reltask.leases as lease
    where lease.name = :lease::text and lease.term = :term::bigint and lease.holder is not null
    for key share
),

silent as materialized (
    select worker.id
    from reltask.workers as worker
    where (:term::bigint is null or exists (select from leader))
      and worker.stopped_at is null and worker.dead_at is null
      and worker.alive_until < (select now from parameters)
    for update skip locked
)

update reltask.workers as worker
set dead_at = parameters.now
from silent
cross join parameters
where worker.id = silent.id
returning worker.id;
