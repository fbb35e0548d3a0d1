-- Purpose       renew a lease, and publish what its holder has to say.
-- Precondition  term and acquisition still match, and the lease has not ended: one that has never revives.
-- Lock order    one row. The leader's own open transaction does not keep it waiting: guard_lease locks no row.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @lease nvarchar(128) = :lease,
        @term bigint = :term,
        @acquisition uniqueidentifier = :acquisition,
        @metadata nvarchar(max) = :metadata;

BEGIN TRY
    UPDATE reltask.Leases
    SET HeartbeatAt = @now,
        ExpiresAt = DATEADD(MILLISECOND, TtlMs % 60000, DATEADD(MINUTE, TtlMs / 60000, @now)),
        Metadata = COALESCE(@metadata, Metadata)
    WHERE Name = @lease AND Term = @term AND Acquisition = @acquisition AND ExpiresAt > @now;

    SELECT @lease AS name WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
