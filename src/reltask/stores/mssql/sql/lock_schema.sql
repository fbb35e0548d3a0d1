-- Purpose       Let one migration run at a time.
-- Precondition  Inside the migration's transaction, whose end releases the lock.
-- Lock order    This lock first, tables afterwards. Gives up after 15 seconds, so that the
--               application's statements do not queue behind a waiting ALTER TABLE.
-- Returns       One row: granted is 0 or more if the lock was taken.

DECLARE @granted int;

EXEC @granted = sp_getapplock
    @Resource = N'reltask.migrate',
    @LockMode = N'Exclusive',
    @LockOwner = N'Transaction',
    @LockTimeout = 15000;

SELECT @granted AS granted;
