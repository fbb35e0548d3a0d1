-- Purpose       let one migration run at a time.
-- Precondition  inside the migration's transaction: its end frees the lock.
-- Lock order    this lock first, tables afterwards. Gives up after a while, so that the application's statements are not
--               kept waiting behind a table that is being changed.

DECLARE @granted int;

EXEC @granted = sp_getapplock
    @Resource = N'reltask.migrate', @LockMode = N'Exclusive', @LockOwner = N'Transaction', @LockTimeout = 15000;

SELECT @granted AS granted;
