-- Purpose       In a leader's own transaction: prevent a takeover of the lease until the commit.
-- Precondition  The lease is held under this term. Otherwise no row is returned, and the
--               transaction must be rolled back.
-- Lock order    No row: a shared application lock on the lease's name, which ends with the
--               transaction.
-- Returns       One row with the name, if the term still holds.
-- See           SQL.md: leader check, T-SQL batch.
--
-- A row lock would not do: SQL Server has none that lets the leader's heartbeats pass and keeps
-- takeovers out, as PostgreSQL's KEY SHARE does. An application lock is independent of the row:
--
--     leader's transaction   Shared, check the term, write, COMMIT: unlocks when it is visible
--     leader's heartbeat     UPDATE of the row: passes
--     another candidate      Exclusive, without waiting: refused until then; afterwards term + 1
--
-- The term is checked after the lock is taken: a takeover in progress is waited for, and then the
-- term is another one. The hint makes the check see what is committed now, even in a transaction
-- that reads a snapshot. The first SELECT is for drivers that begin a transaction only with the
-- first statement that reads a table: without a transaction the lock would have no owner.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @lease nvarchar(128) = :lease,
        @term bigint = :term;
DECLARE @guard nvarchar(255) = N'reltask.lease ' + @lease,
        @locked int,
        @seen bigint;

BEGIN TRY
    SELECT @seen = Term
    FROM reltask.Leases WITH (INDEX (PK_Leases), FORCESEEK)
    WHERE Name = @lease;

    EXEC @locked = sp_getapplock
        @Resource = @guard,
        @LockMode = N'Shared',
        @LockOwner = N'Transaction',
        @LockTimeout = 5000;

    IF @locked < 0
        SELECT 1222 AS error_number,
               N'A takeover of the lease has not ended in time.' AS error_message;
    ELSE
        SELECT Name AS name
        FROM reltask.Leases WITH (INDEX (PK_Leases), FORCESEEK, READCOMMITTEDLOCK)
        WHERE Name = @lease AND Term = @term AND Holder IS NOT NULL;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
