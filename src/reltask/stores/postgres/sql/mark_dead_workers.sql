-- Purpose       mark workers that gave no sign of life for as long as they had promised.
-- Precondition  neither stopped nor marked yet; and, where a term is given, the lease is still held under it.
-- Lock order    the lease's row in share mode, then workers; one that shows a sign of life just now is skipped.

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
