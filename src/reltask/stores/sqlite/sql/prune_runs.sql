-- Purpose       Delete the oldest ledger rows: those past the age limit, and those beyond the
--               number to keep. With the row that ended a slot go its steps and signals.
-- Precondition  Older than an hour, whatever was asked for. If a term is given, the lease is still
--               held under it.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       Statement 4: one row per deleted ledger row.
-- Parameters    :surplus_before is from read_surplus.sql, or null.
-- See           SQL.md: one writer, leader check.

with
old as (
    select job_id, fence, slot_no, steps, outcome
    from reltask_runs
    where finished_at < min(
        :now - 3600000000,
        max(:now - :older_than, coalesce(:surplus_before, 0))
    )
      and (
          :term is null
          or exists (
              select 1
              from reltask_leases
              where name = :lease and term = :term and holder is not null
          )
      )
    order by finished_at, job_id, fence
    limit :limit
)

delete from reltask_steps
where (job_id, slot_no) in (
    select job_id, slot_no
    from old
    where steps is not null and outcome in ('succeeded', 'cancelled', 'skipped', 'discarded')
);

with
old as (
    select job_id, fence, slot_no, steps, outcome
    from reltask_runs
    where finished_at < min(
        :now - 3600000000,
        max(:now - :older_than, coalesce(:surplus_before, 0))
    )
      and (
          :term is null
          or exists (
              select 1
              from reltask_leases
              where name = :lease and term = :term and holder is not null
          )
      )
    order by finished_at, job_id, fence
    limit :limit
)

delete from reltask_child_ends
where (parent_id, slot_no) in (
    select job_id, slot_no
    from old
    where steps is not null and outcome in ('succeeded', 'cancelled', 'skipped', 'discarded')
);

-- A job without steps may have been sent signals, too.
with
old as (
    select job_id, fence, slot_no, steps, outcome
    from reltask_runs
    where finished_at < min(
        :now - 3600000000,
        max(:now - :older_than, coalesce(:surplus_before, 0))
    )
      and (
          :term is null
          or exists (
              select 1
              from reltask_leases
              where name = :lease and term = :term and holder is not null
          )
      )
    order by finished_at, job_id, fence
    limit :limit
)

delete from reltask_signals
where (job_id, slot_no) in (
    select job_id, slot_no
    from old
    where outcome in ('succeeded', 'cancelled', 'skipped', 'discarded')
);

with
old as (
    select job_id, fence, slot_no, steps, outcome
    from reltask_runs
    where finished_at < min(
        :now - 3600000000,
        max(:now - :older_than, coalesce(:surplus_before, 0))
    )
      and (
          :term is null
          or exists (
              select 1
              from reltask_leases
              where name = :lease and term = :term and holder is not null
          )
      )
    order by finished_at, job_id, fence
    limit :limit
)

delete from reltask_runs
where (job_id, fence) in (select job_id, fence from old)
returning job_id;
