-- Purpose       Renew a lease, and publish its holder's metadata.
-- Precondition  Term and acquisition still match, and the lease has not expired: an expired one is
--               never renewed.
-- Lock order    One row. An open transaction of the leader does not block it: guard_lease.sql locks
--               no row.
-- Returns       One row with the name, if the lease was renewed.
-- See           SQL.md: nullable now, T-SQL batch, duration in minutes.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @lease nvarchar(128) = :lease,
        @term bigint = :term,
        @acquisition uniqueidentifier = :acquisition,
        @metadata nvarchar(max) = :metadata;

BEGIN TRY
    UPDATE lease
    SET HeartbeatAt = @now,
        ExpiresAt = DATEADD(
            MILLISECOND, lease.TtlMs % 60000,
            DATEADD(MINUTE, lease.TtlMs / 60000, @now)
        ),
        Metadata = COALESCE(@metadata, lease.Metadata)
    FROM reltask.Leases AS lease WITH (INDEX (PK_Leases), UPDLOCK, ROWLOCK)
    WHERE lease.Name = @lease AND lease.Term = @term AND lease.Acquisition = @acquisition
      AND lease.ExpiresAt > @now;

    SELECT @lease AS name WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
