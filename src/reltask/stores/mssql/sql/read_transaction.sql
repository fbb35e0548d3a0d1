-- Purpose       Ask whether a transaction is still open, after an error or before a completion.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row: state is 1 if it is open, 0 if it has ended, -1 if it can only be rolled
--               back.

SELECT CAST(XACT_STATE() AS int) AS state;
