-- Purpose       Make a job due at once; its nominal time stays, and a due job keeps its place.
-- Precondition  Unclaimed, not dead; still the fence that was seen, if one is given.
-- Lock order    One row.
-- Returns       One row with the id, if the job was unclaimed and not dead.
-- See           SQL.md: nullable now, T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @id uniqueidentifier = :id,
        @fence bigint = :fence;

BEGIN TRY
    UPDATE job
    SET NotBefore = CASE WHEN job.DueAt < @now THEN job.DueAt ELSE @now END
    FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
    WHERE job.Id = @id AND job.LockedBy IS NULL AND job.DeadAt IS NULL
      AND (@fence IS NULL OR job.Fence = @fence);

    SELECT @id AS id WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
