-- Purpose       undo a transaction's writes, if there still is one.
-- Precondition  none.
-- Lock order    frees all locks.

IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
