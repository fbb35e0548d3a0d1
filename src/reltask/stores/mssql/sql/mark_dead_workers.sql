-- Purpose       Mark workers as dead whose AliveUntil has passed.
-- Precondition  Neither stopped nor marked yet. If a term is given, the lease is still held under
--               it.
-- Lock order    The lease's guard in share mode (see guard_lease.sql), then workers. Locked rows
--               are skipped: such a worker is sending a heartbeat.
-- Returns       One row per marked worker: its id.
-- See           SQL.md: nullable now, leader check, skip locked, T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @lease nvarchar(128) = :lease,
        @term bigint = :term;
DECLARE @guard nvarchar(255) = N'reltask.lease ' + @lease,
        @leads int = 0;
DECLARE @marked TABLE (Id nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);

BEGIN TRY
    BEGIN TRANSACTION;

    IF @term IS NOT NULL
    BEGIN
        EXEC @leads = sp_getapplock
            @Resource = @guard,
            @LockMode = N'Shared',
            @LockOwner = N'Transaction',
            @LockTimeout = 5000;
        IF NOT EXISTS (
            SELECT 1
            FROM reltask.Leases WITH (INDEX (PK_Leases), FORCESEEK, READCOMMITTEDLOCK)
            WHERE Name = @lease AND Term = @term AND Holder IS NOT NULL
        )
            SET @leads = -1;
    END;

    IF @leads >= 0
        UPDATE reltask.Workers WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        SET DeadAt = @now
        OUTPUT inserted.Id INTO @marked (Id)
        WHERE StoppedAt IS NULL AND DeadAt IS NULL AND AliveUntil < @now;

    COMMIT TRANSACTION;

    SELECT Id AS id FROM @marked;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
