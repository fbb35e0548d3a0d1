-- Purpose       the database's time.
-- Precondition  none.
-- Lock order    no locks.

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME());

SELECT @now AS now;
