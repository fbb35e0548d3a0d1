-- Purpose       Keep the claim until the commit: the last statement of a transaction that completes
--               nothing, or the one before a settlement that has to wait for its row.
-- Precondition  The job's row still has this id, owner and fence. Otherwise no row is returned, and
--               the transaction must be rolled back.
-- Lock order    One row, locked last in its transaction, so that heartbeats and reclaims are not
--               held up. Waits for a locked row, then checks it again.
-- Returns       One row with the id, if the claim still holds.
-- See           SQL.md: nullable now, fence, T-SQL batch, duration in minutes.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @worker nvarchar(256) = :worker,
        @id uniqueidentifier = :id,
        @fence bigint = :fence;
DECLARE @written TABLE (Id uniqueidentifier NOT NULL);

BEGIN TRY
    UPDATE job
    SET HeartbeatAt = @now,
        LockExpiresAt = DATEADD(
            MILLISECOND, job.ClaimTimeoutMs % 60000,
            DATEADD(MINUTE, job.ClaimTimeoutMs / 60000, @now)
        )
    OUTPUT inserted.Id INTO @written (Id)
    FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
    WHERE job.Id = @id AND job.Fence = @fence AND job.LockedBy = @worker;

    SELECT Id AS id FROM @written;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
