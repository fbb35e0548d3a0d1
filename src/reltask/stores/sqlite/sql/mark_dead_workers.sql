-- Purpose       Mark workers as dead whose alive_until has passed.
-- Precondition  Neither stopped nor marked yet. If a term is given, the lease is still held under
--               it.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row per marked worker: its id.
-- See           SQL.md: one writer, leader check.

update reltask_workers
set dead_at = :now
where stopped_at is null and dead_at is null and alive_until < :now
  and (
      :term is null
      or exists (
          select 1
          from reltask_leases
          where name = :lease and term = :term and holder is not null
      )
  )
returning id;
