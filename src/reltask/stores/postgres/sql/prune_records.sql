-- Purpose       Delete old workers, old metrics, expired lease waiters, and signals and ends of
--               children that came too late, up to :limit of each.
-- Precondition  The worker ended, or the metric's minute lies, longer ago than its age limit; the
--               wait is over. The signal or the end is older than the metrics, and its job is gone
--               or in a later slot. If a term is given, the lease is still held under it.
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

late_signals as materialized (
    select signal.job_id, signal.slot_no, signal.name, signal.id
    from reltask.signals as signal
    where (:term::bigint is null or exists (select from leader))
      and signal.sent_at < (select now from parameters) - :metrics::interval
      and not exists (
          select from reltask.jobs as job
          where job.id = signal.job_id and job.slot_no <= signal.slot_no
      )
    order by signal.sent_at
    limit :limit::integer
    for update of signal skip locked
),

late_ends as materialized (
    select child.parent_id, child.slot_no, child.step, child.nth
    from reltask.child_ends as child
    where (:term::bigint is null or exists (select from leader))
      and child.ended_at < (select now from parameters) - :metrics::interval
      and not exists (
          select from reltask.jobs as job
          where job.id = child.parent_id and job.slot_no <= child.slot_no
      )
    order by child.ended_at
    limit :limit::integer
    for update of child skip locked
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
),

removed_signals as (
    delete from reltask.signals as signal
    using late_signals as late
    where signal.job_id = late.job_id and signal.slot_no = late.slot_no
      and signal.name = late.name and signal.id = late.id
    returning 1
),

removed_ends as (
    delete from reltask.child_ends as child
    using late_ends as late
    where child.parent_id = late.parent_id and child.slot_no = late.slot_no
      and child.step = late.step and child.nth = late.nth
    returning 1
)

select (select count(*) from removed_workers)
     + (select count(*) from removed_metrics)
     + (select count(*) from removed_waiters)
     + (select count(*) from removed_signals)
     + (select count(*) from removed_ends) as removed;
