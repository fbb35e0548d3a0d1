-- Purpose       Where the ledger is divided: make the partitions of the days to come, and drop
--               those whose rows are past the age limit or beyond the number to keep.
-- Precondition  Older than an hour, whatever was asked for. If a term is given, the lease is still
--               held under it.
-- Lock order    The lease's row in share mode, then the ledger as a whole, for a moment; a session
--               that uses it for longer is not waited for.
-- Returns       One row: the number of dropped rows, as the statistics know it; null if the ledger
--               was in use. No row if the lease was lost.
-- Parameters    :surplus_before is from read_surplus.sql, or null.
-- See           SQL.md: nullable now, materialized CTE, leader check.
--
-- docs/scaling.md says when to divide the ledger. Where it is whole, this does nothing.

with
leader as materialized (
    select lease.name
    from reltask.leases as lease
    where lease.name = :lease::text and lease.term = :term::bigint and lease.holder is not null
    for key share
)

select reltask.renew_partitions(
    greatest(given.now - :older_than::interval, :surplus_before::timestamptz)
)
from (select coalesce(:now::timestamptz, statement_timestamp()) as now) as given
where :term::bigint is null or exists (select from leader);
