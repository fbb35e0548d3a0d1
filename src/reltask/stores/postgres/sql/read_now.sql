-- Purpose       the database's time.
-- Precondition  none.
-- Lock order    no locks.

select coalesce(:now::timestamptz, statement_timestamp()) as now;
