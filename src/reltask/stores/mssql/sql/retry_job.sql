-- Purpose       give a dead job a new set of attempts, due at once.
-- Precondition  dead.
-- Lock order    one row.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @id uniqueidentifier = :id;

BEGIN TRY
    UPDATE reltask.Jobs
    SET Attempt = 0, DeadAt = NULL, Isolated = 0, NotBefore = @now
    WHERE Id = @id AND DeadAt IS NOT NULL;

    SELECT @id AS id WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
