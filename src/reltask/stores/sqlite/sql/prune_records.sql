-- Purpose       Delete old workers, old metrics and expired lease waiters, up to :limit of each.
-- Precondition  The worker ended, or the metric's minute lies, longer ago than its age limit; the
--               wait is over. If a term is given, the lease is still held under it.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row per deleted row.
-- See           SQL.md: one writer, leader check.

delete from reltask_workers
where id in (
    select id
    from reltask_workers
    where coalesce(stopped_at, dead_at) < :now - :workers
    limit :limit
)
  and (
      :term is null
      or exists (
          select 1
          from reltask_leases
          where name = :lease and term = :term and holder is not null
      )
  )
returning id;

delete from reltask_metrics
where (minute, task) in (
    select minute, task
    from reltask_metrics
    where minute < :now - :metrics
    order by minute
    limit :limit
)
  and (
      :term is null
      or exists (
          select 1
          from reltask_leases
          where name = :lease and term = :term and holder is not null
      )
  )
returning minute;

delete from reltask_lease_waiters
where (name, holder) in (
    select name, holder
    from reltask_lease_waiters
    where waiting_until <= :now
    limit :limit
)
  and (
      :term is null
      or exists (
          select 1
          from reltask_leases
          where name = :lease and term = :term and holder is not null
      )
  )
returning name;
