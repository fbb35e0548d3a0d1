-- Purpose       Roll a transaction back, if one is still open.
-- Precondition  None.
-- Lock order    Releases all locks.
-- Returns       No rows.

IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
