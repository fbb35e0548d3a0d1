-- Purpose       Read the database's time.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row: the time.
-- See           SQL.md: nullable now.

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME());

SELECT @now AS now;
