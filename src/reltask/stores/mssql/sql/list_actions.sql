-- Purpose       One page of what operators did, the latest first.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per action.
-- Parameters    :after_at and :after_id are those of the last row of the page before, or null.
-- See           SQL.md: T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @after_at datetime2(6) = :after_at,
        @after_id uniqueidentifier = :after_id,
        @limit int = :limit;

BEGIN TRY
    SELECT TOP (@limit) Id AS id, At AS at, Actor AS actor, Action AS action, Target AS target,
           Seen AS seen, Jobs AS jobs, Outcome AS outcome, Changed AS changed
    FROM reltask.Actions
    WHERE @after_at IS NULL OR At < @after_at OR (At = @after_at AND Id < @after_id)
    ORDER BY At DESC, Id DESC;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
