-- Purpose       Number an install as a shard of a system.
-- Precondition  It has no number yet, or this one.
-- Lock order    One row.
-- Returns       One row with the number, if the install has it now.
-- See           SQL.md: T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @shard smallint = :shard;

BEGIN TRY
    UPDATE reltask.Meta SET Shard = @shard WHERE Shard IS NULL OR Shard = @shard;

    SELECT @shard AS shard WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
