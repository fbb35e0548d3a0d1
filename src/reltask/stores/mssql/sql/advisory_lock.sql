-- Purpose       try for a lock that lives as long as its connection.
-- Precondition  a connection of its own.
-- Lock order    one application lock; never waits. Granted: 0 or more.

DECLARE @name nvarchar(255) = N'reltask ' + :name;
DECLARE @granted int;

EXEC @granted = sp_getapplock
    @Resource = @name, @LockMode = N'Exclusive', @LockOwner = N'Session', @LockTimeout = 0;

SELECT @granted AS granted;
