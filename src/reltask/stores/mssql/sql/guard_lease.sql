-- Purpose       in a leader's own transaction: keep anybody from taking the lease over until the commit.
-- Precondition  held, and the term still matches; otherwise nothing is found, and the transaction must be rolled back.
-- Lock order    no row: an application lock on the lease's name, shared, which ends with the transaction.
--
-- A row lock would not do. SQL Server has none that lets the leader's own beats through and keeps takeovers out, as
-- PostgreSQL's KEY SHARE does. An application lock knows nothing of the row:
--
--     leader's transaction   Shared ── look at the term ── writes ── COMMIT: the lock ends after the writes are visible
--     the same leader's beat           UPDATE of the row: passes
--     somebody else's try                Exclusive, without waiting: refused    ── COMMIT ──► Exclusive, term + 1
--
-- The look comes after the lock: a takeover under way is waited for, and then the term is another one. The hint makes
-- the look see what is committed now, even in a transaction that reads from a snapshot.
-- The first SELECT is there for drivers that leave the beginning of a transaction to the first statement that reads a
-- table: without a transaction there would be nothing that the lock could belong to.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @lease nvarchar(128) = :lease,
        @term bigint = :term;
DECLARE @guard nvarchar(255) = N'reltask.lease ' + @lease,
        @locked int,
        @seen bigint;

BEGIN TRY
    SELECT @seen = Term FROM reltask.Leases WHERE Name = @lease;

    EXEC @locked = sp_getapplock
        @Resource = @guard, @LockMode = N'Shared', @LockOwner = N'Transaction', @LockTimeout = 5000;

    IF @locked < 0
        SELECT 1222 AS error_number, N'A takeover of the lease has not ended in time.' AS error_message;
    ELSE
        SELECT Name AS name
        FROM reltask.Leases WITH (READCOMMITTEDLOCK)
        WHERE Name = @lease AND Term = @term AND Holder IS NOT NULL;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
