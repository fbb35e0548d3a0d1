-- Purpose       whether this connection still has the lock that advisory_lock took.
-- Precondition  none; reads only.
-- Lock order    no locks.

DECLARE @name nvarchar(255) = N'reltask ' + :name;

SELECT CASE WHEN APPLOCK_MODE(N'public', @name, N'Session') = N'NoLock' THEN 0 ELSE 1 END AS held;
