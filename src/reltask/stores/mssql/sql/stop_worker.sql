-- Purpose       Mark a worker as stopped, and remove it from the waiters of all leases.
-- Precondition  Not stopped yet; a second call changes nothing.
-- Lock order    Rows of this worker only.
-- Returns       No rows.
-- See           SQL.md: nullable now, T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @worker nvarchar(256) = :worker;

BEGIN TRY
    DELETE FROM reltask.LeaseWaiters WHERE Holder = @worker;

    UPDATE reltask.Workers SET StoppedAt = @now WHERE Id = @worker AND StoppedAt IS NULL;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
