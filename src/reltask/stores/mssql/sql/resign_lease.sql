-- Purpose       Give a lease back; the row stays, so that the next term is higher.
-- Precondition  Term and acquisition still match.
-- Lock order    One row.
-- Returns       One row with the name, if the lease was given back.
-- See           SQL.md: nullable now, T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @lease nvarchar(128) = :lease,
        @term bigint = :term,
        @acquisition uniqueidentifier = :acquisition;

BEGIN TRY
    UPDATE lease
    SET Holder = NULL,
        Acquisition = NULL,
        ExpiresAt = CASE WHEN lease.ExpiresAt < @now THEN lease.ExpiresAt ELSE @now END
    FROM reltask.Leases AS lease WITH (INDEX (PK_Leases), UPDLOCK, ROWLOCK)
    WHERE lease.Name = @lease AND lease.Term = @term AND lease.Acquisition = @acquisition;

    SELECT @lease AS name WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
