-- Purpose       whether a transaction is still open after an error: 1 yes, 0 the server has undone it, -1 it will.
-- Precondition  none; reads only.
-- Lock order    no locks.

SELECT CAST(XACT_STATE() AS int) AS state;
