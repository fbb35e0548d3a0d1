-- Purpose       make a transaction's writes permanent.
-- Precondition  one transaction is open; where the server has ended it, this fails, and nothing was applied.
-- Lock order    frees all locks.
--
-- A transaction that somebody began inside this one, and left open, would make of the COMMIT below a mere step out of
-- the inner one: everything would look committed, and be gone with the connection.

IF @@TRANCOUNT > 1
BEGIN
    ROLLBACK TRANSACTION;
    SELECT 266 AS error_number,
           N'A transaction was begun inside the task''s own and not ended; both were rolled back.' AS error_message;
END
ELSE
    COMMIT TRANSACTION;
