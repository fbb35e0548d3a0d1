-- Purpose       give back the lock that advisory_lock took, if it did.
-- Precondition  the same connection.
-- Lock order    frees one application lock.

DECLARE @name nvarchar(255) = N'reltask ' + :name;

IF APPLOCK_MODE(N'public', @name, N'Session') <> N'NoLock'
    EXEC sp_releaseapplock @Resource = @name, @LockOwner = N'Session';
