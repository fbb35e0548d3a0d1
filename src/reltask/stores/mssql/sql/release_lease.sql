-- Purpose       Take a lease away from its holder, on an operator's order.
-- Precondition  Held, under the term that the operator has seen.
-- Lock order    One row. An open transaction of the leader does not block it, but no candidate can
--               acquire the lease before that has ended.
-- Returns       One row with the name, if the lease was released.
-- See           SQL.md: nullable now, T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @lease nvarchar(128) = :lease,
        @term bigint = :term;

BEGIN TRY
    UPDATE lease
    SET Holder = NULL,
        Acquisition = NULL,
        ExpiresAt = CASE WHEN lease.ExpiresAt < @now THEN lease.ExpiresAt ELSE @now END
    FROM reltask.Leases AS lease WITH (INDEX (PK_Leases), UPDLOCK, ROWLOCK)
    WHERE lease.Name = @lease AND lease.Term = @term AND lease.Holder IS NOT NULL;

    SELECT @lease AS name WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
