-- Purpose       Read the database's time.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row: the time.
-- See           SQL.md: nullable now.

select coalesce(:now::timestamptz, statement_timestamp()) as now;
