-- Purpose       Commit a transaction.
-- Precondition  One transaction is open. If the server has ended it, this fails and nothing was
--               applied.
-- Lock order    Releases all locks.
-- Returns       No rows; or one row with an error, if a nested transaction was left open.
--
-- With a nested transaction open, COMMIT would only end the nested one: the writes would look
-- committed, and be lost with the connection. So both are rolled back.

IF @@TRANCOUNT > 1
BEGIN
    ROLLBACK TRANSACTION;
    SELECT 266 AS error_number,
           N'A transaction was begun inside the task''s own and not ended; both were rolled back.'
               AS error_message;
END
ELSE
    COMMIT TRANSACTION;
