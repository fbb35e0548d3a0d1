-- Purpose       mark a worker as stopped; it waits for no lease any more.
-- Precondition  none; a second time changes nothing.
-- Lock order    rows of this worker alone.

SET NOCOUNT ON;
SET XACT_ABORT ON;

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
