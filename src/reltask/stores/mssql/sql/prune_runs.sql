-- Purpose       Delete the oldest ledger rows: those past the age limit, and those beyond the
--               number to keep.
-- Precondition  Older than an hour, whatever was asked for. If a term is given, the lease is still
--               held under it.
-- Lock order    The lease's guard in share mode (see guard_lease.sql), then ledger rows; locked
--               rows are skipped, because another session prunes them. In a deadlock this session
--               is the victim.
-- Returns       One row: the number of deleted rows.
-- Parameters    :surplus_before is from read_surplus.sql, or null.
-- See           SQL.md: nullable now, leader check, skip locked, T-SQL batch, duration in minutes.
--
-- The oldest rows go first, so that what remains of a job's history has no gaps.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @lease nvarchar(128) = :lease,
        @term bigint = :term,
        @older_than bigint = :older_than,
        @surplus_before datetime2(6) = :surplus_before,
        @limit int = :limit;
DECLARE @before datetime2(6) =
            DATEADD(
                MICROSECOND, -(@older_than % 60000000),
                DATEADD(MINUTE, -(@older_than / 60000000), @now)
            ),
        @guard nvarchar(255) = N'reltask.lease ' + @lease,
        @leads int = 0,
        @removed int = 0;
DECLARE @old TABLE (
    JobId uniqueidentifier NOT NULL,
    Fence bigint           NOT NULL,
    PRIMARY KEY (JobId, Fence)
);

BEGIN TRY
    SET DEADLOCK_PRIORITY LOW;
    IF @surplus_before > @before SET @before = @surplus_before;
    IF @before > DATEADD(HOUR, -1, @now) SET @before = DATEADD(HOUR, -1, @now);

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
        INSERT INTO @old (JobId, Fence)
        SELECT TOP (@limit) JobId, Fence
        FROM reltask.Runs WITH (READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
        WHERE FinishedAt < @before
        ORDER BY FinishedAt;

        DELETE FROM reltask.Runs
        WHERE EXISTS (
            SELECT 1
            FROM @old AS old
            WHERE old.JobId = Runs.JobId AND old.Fence = Runs.Fence
        );
        SET @removed = @@ROWCOUNT;
    END;

    COMMIT TRANSACTION;

    SELECT @removed AS removed;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
