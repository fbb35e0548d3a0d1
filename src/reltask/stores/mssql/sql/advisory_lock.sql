-- Purpose       Try to take a lock that lasts as long as its connection.
-- Precondition  A connection of its own.
-- Lock order    One application lock; never waits.
-- Returns       One row: granted is 0 or more if the lock was taken, and negative if not.

DECLARE @name nvarchar(255) = N'reltask ' + :name;
DECLARE @granted int;

EXEC @granted = sp_getapplock
    @Resource = @name,
    @LockMode = N'Exclusive',
    @LockOwner = N'Session',
    @LockTimeout = 0;

SELECT @granted AS granted;
