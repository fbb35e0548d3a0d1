-- Purpose       Let workers claim the jobs of a paused queue or task again.
-- Precondition  It is paused.
-- Lock order    One row.
-- Returns       One row with the name, if it was paused.
-- Parameters    :kind is 'queue' or 'task'.
-- See           SQL.md: T-SQL batch, paused lanes.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @kind nvarchar(16) = :kind,
        @name nvarchar(256) = :name;

BEGIN TRY
    DELETE FROM reltask.Pauses WITH (ROWLOCK)
    WHERE Kind = @kind AND Name = @name;

    SELECT @name AS name WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
