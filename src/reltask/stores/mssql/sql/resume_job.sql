-- Purpose       let a paused job be claimed again.
-- Precondition  paused.
-- Lock order    one row.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @id uniqueidentifier = :id;

BEGIN TRY
    UPDATE reltask.Jobs
    SET PausedAt = NULL
    WHERE Id = @id AND PausedAt IS NOT NULL AND DeadAt IS NULL;

    SELECT @id AS id WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
