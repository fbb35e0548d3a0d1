-- Purpose       Let a shard get no new jobs, or let it get some again.
-- Precondition  Whatever it was before.
-- Lock order    One row.
-- Returns       One row: draining.
-- See           SQL.md: T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @draining bit = :draining;

BEGIN TRY
    UPDATE reltask.Meta SET Draining = @draining;

    SELECT @draining AS draining WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
