-- Purpose       Let a paused job be claimed again.
-- Precondition  Paused, not dead; still the fence that was seen, if one is given.
-- Lock order    One row.
-- Returns       One row with the id, if the job was resumed.
-- See           SQL.md: T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @id uniqueidentifier = :id,
        @fence bigint = :fence;

BEGIN TRY
    UPDATE job
    SET PausedAt = NULL
    FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
    WHERE job.Id = @id AND job.PausedAt IS NOT NULL AND job.DeadAt IS NULL
      AND (@fence IS NULL OR job.Fence = @fence);

    SELECT @id AS id WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
