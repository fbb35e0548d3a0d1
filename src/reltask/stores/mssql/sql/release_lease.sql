-- Purpose       take a lease away from its holder, by a person's order.
-- Precondition  held, under the term that the person saw.
-- Lock order    one row. A leader's open transaction does not keep it waiting; but until that is over nobody else can
--               take the lease.

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
