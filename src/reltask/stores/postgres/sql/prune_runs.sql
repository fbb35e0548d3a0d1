-- Purpose       Delete the oldest ledger rows: those past the age limit, and those beyond the
--               number to keep; with the row that ended a slot also its steps, its signals and the
--               ends of its children.
-- Precondition  Older than an hour, whatever was asked for. If a term is given, the lease is still
--               held under it.
-- Lock order    The lease's row in share mode, then ledger rows; locked rows are skipped, because
--               another session prunes them.
-- Returns       One row: the number of deleted rows.
-- Parameters    :surplus_before is from read_surplus.sql, or null.
-- See           SQL.md: nullable now, materialized CTE, leader check, skip locked, primary-key
--               lookup.
--
-- A row that did not end its slot has no number of steps: a suspended function keeps its steps
-- however old the rows of its earlier runs are.

with
parameters as materialized (
    select least(
        given.now - interval '1 hour',
        greatest(given.now - :older_than::interval, :surplus_before::timestamptz)
    ) as before
    from (select coalesce(:now::timestamptz, statement_timestamp()) as now) as given
),

leader as materialized (
    select lease.name
    from reltask.leases as lease
    where lease.name = :lease::text and lease.term = :term::bigint and lease.holder is not null
    for key share
),

old as materialized (
    select run.job_id, run.fence, run.slot_no, run.steps
    from reltask.runs as run
    where (:term::bigint is null or exists (select from leader))
      and run.finished_at < (select before from parameters)
    order by run.finished_at
    limit :limit::integer
    for update of run skip locked
),

removed_steps as (
    delete from reltask.steps as step
    using old
    where old.steps is not null
      and step.job_id = any (array[old.job_id]) and step.slot_no = old.slot_no
),

removed_signals as (
    delete from reltask.signals as signal
    using old
    where old.steps is not null
      and signal.job_id = any (array[old.job_id]) and signal.slot_no = old.slot_no
),

removed_ends as (
    delete from reltask.child_ends as child
    using old
    where old.steps is not null
      and child.parent_id = any (array[old.job_id]) and child.slot_no = old.slot_no
),

removed as (
    delete from reltask.runs as run
    using old
    where run.job_id = old.job_id and run.fence = old.fence
    returning 1
)

select count(*) from removed;
