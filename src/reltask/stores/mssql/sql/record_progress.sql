-- Purpose       Write a run's progress.
-- Precondition  The job's row still has this id, owner and fence.
-- Lock order    One row.
-- Returns       One row with the id, if the claim still holds.
-- See           SQL.md: fence, T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @worker nvarchar(256) = :worker,
        @id uniqueidentifier = :id,
        @fence bigint = :fence,
        @progress nvarchar(max) = :progress;
DECLARE @written TABLE (Id uniqueidentifier NOT NULL);

BEGIN TRY
    UPDATE job
    SET Progress = @progress
    OUTPUT inserted.Id INTO @written (Id)
    FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
    WHERE job.Id = @id AND job.Fence = @fence AND job.LockedBy = @worker;

    SELECT Id AS id FROM @written;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
