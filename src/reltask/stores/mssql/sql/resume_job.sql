-- Purpose       Let a paused job be claimed again.
-- Precondition  Paused, not dead.
-- Lock order    One row.
-- Returns       One row with the id, if the job was resumed.
-- See           SQL.md: T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @id uniqueidentifier = :id;

BEGIN TRY
    UPDATE job
    SET PausedAt = NULL
    FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
    WHERE job.Id = @id AND job.PausedAt IS NOT NULL AND job.DeadAt IS NULL;

    SELECT @id AS id WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
