-- Purpose       Record what became of an operator's action.
-- Precondition  It is recorded, and has no outcome yet.
-- Lock order    One row.
-- Returns       One row with the id, if the outcome was written.
-- See           SQL.md: T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @id uniqueidentifier = :id,
        @outcome nvarchar(2000) = :outcome,
        @changed int = :changed;

BEGIN TRY
    UPDATE reltask.Actions
    SET Outcome = @outcome, Changed = @changed
    WHERE Id = @id AND Outcome IS NULL;

    SELECT @id AS id WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
