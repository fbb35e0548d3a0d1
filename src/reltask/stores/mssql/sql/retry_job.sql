-- Purpose       give a dead job a new set of attempts, due at once.
-- Precondition  dead.
-- Lock order    one row.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @id uniqueidentifier = :id;

BEGIN TRY
    UPDATE job
    SET Attempt = 0, DeadAt = NULL, Isolated = 0, NotBefore = @now
    FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
    WHERE job.Id = @id AND job.DeadAt IS NOT NULL;

    SELECT @id AS id WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
