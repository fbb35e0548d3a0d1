-- Purpose       Record what an operator is about to do.
-- Precondition  It is not recorded yet: sent twice, it is recorded once. The id is the caller's.
-- Lock order    The new row.
-- Returns       No rows.
-- See           SQL.md: nullable now, T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @id uniqueidentifier = :id,
        @actor nvarchar(256) = :actor,
        @action nvarchar(32) = :action,
        @target nvarchar(2000) = :target,
        @seen nvarchar(256) = :seen,
        @jobs int = :jobs;

BEGIN TRY
    INSERT INTO reltask.Actions WITH (ROWLOCK) (Id, At, Actor, Action, Target, Seen, Jobs)
    SELECT @id, @now, @actor, @action, @target, @seen, @jobs
    WHERE NOT EXISTS (SELECT 1 FROM reltask.Actions WITH (UPDLOCK, HOLDLOCK) WHERE Id = @id);
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
