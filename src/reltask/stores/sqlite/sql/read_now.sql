-- Purpose       Read the time of a transaction: the host's clock, to the millisecond.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row: the time in microseconds since 1970.
-- See           SQL.md: nullable now.

select coalesce(
    :now,
    cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000
) as now;
