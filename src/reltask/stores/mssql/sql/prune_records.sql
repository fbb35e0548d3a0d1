-- Purpose       Delete old workers, old metrics and expired lease waiters, up to :limit of each.
-- Precondition  The worker ended, or the metric's minute lies, longer ago than its age limit; the
--               wait is over. If a term is given, the lease is still held under it.
-- Lock order    The lease's guard in share mode (see guard_lease.sql), then the others; locked rows
--               are skipped.
-- Returns       One row: the number of deleted rows.
-- See           SQL.md: nullable now, leader check, skip locked, T-SQL batch, duration in minutes.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @lease nvarchar(128) = :lease,
        @term bigint = :term,
        @workers bigint = :workers,
        @metrics bigint = :metrics,
        @limit int = :limit;
DECLARE @guard nvarchar(255) = N'reltask.lease ' + @lease,
        @leads int = 0,
        @removed int = 0,
        @ended_before datetime2(6) =
            DATEADD(
                MICROSECOND, -(@workers % 60000000),
                DATEADD(MINUTE, -(@workers / 60000000), @now)
            ),
        @made_before datetime2(6) =
            DATEADD(
                MICROSECOND, -(@metrics % 60000000),
                DATEADD(MINUTE, -(@metrics / 60000000), @now)
            );

BEGIN TRY
    SET DEADLOCK_PRIORITY LOW;

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
            FROM reltask.Leases WITH (READCOMMITTEDLOCK)
            WHERE Name = @lease AND Term = @term AND Holder IS NOT NULL
        )
            SET @leads = -1;
    END;

    IF @leads >= 0
    BEGIN
        DELETE TOP (@limit) FROM reltask.Workers WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE COALESCE(StoppedAt, DeadAt) < @ended_before;
        SET @removed = @removed + @@ROWCOUNT;

        DELETE TOP (@limit) FROM reltask.Metrics WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE Minute < @made_before;
        SET @removed = @removed + @@ROWCOUNT;

        DELETE TOP (@limit) FROM reltask.LeaseWaiters WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE WaitingUntil <= @now;
        SET @removed = @removed + @@ROWCOUNT;
    END;

    COMMIT TRANSACTION;

    SELECT @removed AS removed;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
