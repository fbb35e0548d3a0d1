-- Purpose       Take a lease away from its holder, on an operator's order.
-- Precondition  Held, under the term that the operator has seen.
-- Lock order    One row. An open transaction of the leader does not block it, but no candidate can
--               acquire the lease before that has ended.
-- Returns       One row with the name, if the lease was released.
-- See           SQL.md: nullable now, T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @lease nvarchar(128) = :lease,
        @term bigint = :term;

BEGIN TRY
    UPDATE reltask.Leases
    SET Holder = NULL,
        Acquisition = NULL,
        ExpiresAt = CASE WHEN ExpiresAt < @now THEN ExpiresAt ELSE @now END
    WHERE Name = @lease AND Term = @term AND Holder IS NOT NULL;

    SELECT @lease AS name WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
