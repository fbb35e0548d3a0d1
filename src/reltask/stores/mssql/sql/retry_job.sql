-- Purpose       Give a dead job a new set of attempts, due at once.
-- Precondition  Dead; still the fence that was seen, if one is given.
-- Lock order    One row.
-- Returns       One row with the id, if the job was dead.
-- See           SQL.md: nullable now, T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @id uniqueidentifier = :id,
        @fence bigint = :fence;

BEGIN TRY
    UPDATE job
    SET Attempt = 0, DeadAt = NULL, Losses = 0, Isolated = 0, NotBefore = @now
    FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
    WHERE job.Id = @id AND job.DeadAt IS NOT NULL
      AND (@fence IS NULL OR job.Fence = @fence);

    SELECT @id AS id WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
