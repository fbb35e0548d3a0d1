-- Purpose       make a transaction's writes permanent.
-- Precondition  a transaction is open; where the server has ended it, this fails, and nothing was applied.
-- Lock order    frees all locks.

COMMIT TRANSACTION;
