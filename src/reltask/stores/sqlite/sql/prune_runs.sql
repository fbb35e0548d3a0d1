-- Purpose       Delete the oldest ledger rows: those past the age limit, and those beyond the
--               number to keep.
-- Precondition  Older than an hour, whatever was asked for. If a term is given, the lease is still
--               held under it.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row per deleted row.
-- Parameters    :surplus_before is from read_surplus.sql, or null.
-- See           SQL.md: one writer, leader check.

delete from reltask_runs
where (job_id, fence) in (
    select job_id, fence
    from reltask_runs
    where finished_at < min(
        :now - 3600000000,
        max(:now - :older_than, coalesce(:surplus_before, 0))
    )
    order by finished_at
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
returning job_id;
