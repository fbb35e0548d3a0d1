-- Purpose       Ask whether this connection still has the lock of advisory_lock.sql.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row: held, 1 or 0.

DECLARE @name nvarchar(255) = N'reltask ' + :name;

SELECT CASE WHEN APPLOCK_MODE(N'public', @name, N'Session') = N'NoLock' THEN 0 ELSE 1 END AS held;
