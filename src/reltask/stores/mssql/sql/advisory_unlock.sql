-- Purpose       Release the lock of advisory_lock.sql, if this connection has it.
-- Precondition  The connection that took the lock.
-- Lock order    Releases one application lock.
-- Returns       No rows.

DECLARE @name nvarchar(255) = N'reltask ' + :name;

IF APPLOCK_MODE(N'public', @name, N'Session') <> N'NoLock'
    EXEC sp_releaseapplock @Resource = @name, @LockOwner = N'Session';
