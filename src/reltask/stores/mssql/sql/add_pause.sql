-- Purpose       Pause a queue or a task: no worker claims a job of it any more.
-- Precondition  It is not paused. An existing pause keeps its reason: a row is never updated.
-- Lock order    One row, and the range that another session would insert it into.
-- Returns       One row with the name, if the pause is new.
-- Parameters    :kind is 'queue' or 'task'.
-- See           SQL.md: nullable now, T-SQL batch, paused lanes.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @kind nvarchar(16) = :kind,
        @name nvarchar(256) = :name,
        @reason nvarchar(2000) = :reason,
        @paused_by nvarchar(256) = :paused_by;

BEGIN TRY
    INSERT INTO reltask.Pauses WITH (ROWLOCK) (Kind, Name, Reason, PausedBy, PausedAt)
    SELECT @kind, @name, @reason, @paused_by, @now
    WHERE NOT EXISTS (
        SELECT 1
        FROM reltask.Pauses AS pause WITH (UPDLOCK, HOLDLOCK)
        WHERE pause.Kind = @kind AND pause.Name = @name
    );

    SELECT @name AS name WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
