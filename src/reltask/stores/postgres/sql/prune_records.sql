-- Purpose       Delete old workers, old metrics and expired lease waiters, up to :limit of each.
-- Precondition  The worker ended, or the metric's minute lies, longer ago than its age limit; the
--               wait is over. If a term is given, the lease is still held under it.
-- Lock order    The lease's row in share mode, then the others; locked rows are skipped.
-- Returns       One row: the number of deleted rows.
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

ended as materialized (
    select worker.id
    from reltask.workers as worker
    where (:term::bigint is null or exists (select from leader))
      and coalesce(worker.stopped_at, worker.dead_at)
          < (select now from parameters) - :workers::interval
    limit :limit::integer
    for update skip locked
),

old as materialized (
    select metric.minute, metric.task
    from reltask.metrics as metric
    where (:term::bigint is null or exists (select from leader))
      and metric.minute < (select now from parameters) - :metrics::interval
    order by metric.minute
    limit :limit::integer
    for update skip locked
),

over as materialized (
    select waiter.name, waiter.holder
    from reltask.lease_waiters as waiter
    where (:term::bigint is null or exists (select from leader))
      and waiter.waiting_until <= (select now from parameters)
    limit :limit::integer
    for update skip locked
),

removed_workers as (
    delete from reltask.workers as worker
    using ended
    where worker.id = ended.id
    returning 1
),

removed_metrics as (
    delete from reltask.metrics as metric
    using old
    where metric.minute = old.minute and metric.task = old.task
    returning 1
),

removed_waiters as (
    delete from reltask.lease_waiters as waiter
    using over
    where waiter.name = over.name and waiter.holder = over.holder
    returning 1
)

select (select count(*) from removed_workers)
     + (select count(*) from removed_metrics)
     + (select count(*) from removed_waiters) as removed;
