-- Purpose       begin a transaction of somebody's own: a task's writes, or a migration.
-- Precondition  no transaction is open. A batch of its own, without parameters: what it sets is meant to stay.
-- Lock order    no locks.

SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN TRANSACTION;
