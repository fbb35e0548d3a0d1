-- Purpose       Begin a transaction: a task's own, or a migration's.
-- Precondition  No transaction is open. The batch has no parameters, so that its setting stays in
--               force.
-- Lock order    Locks nothing.
-- Returns       No rows.

SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN TRANSACTION;
