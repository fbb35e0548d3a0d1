-- Purpose       List leases by name.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per lease, with the number of its waiters and the database's time.
-- See           SQL.md: nullable now, T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME());

BEGIN TRY
    SELECT lease.Name AS name, lease.Holder AS holder, lease.Term AS term,
           lease.AcquiredAt AS acquired_at, lease.HeartbeatAt AS heartbeat_at,
           lease.TtlMs AS ttl_ms, lease.ExpiresAt AS expires_at,
           CASE WHEN lease.Holder IS NOT NULL AND lease.ExpiresAt > @now THEN 1 ELSE 0 END AS held,
           (
               SELECT COUNT(*)
               FROM reltask.LeaseWaiters AS waiter
               WHERE waiter.Name = lease.Name AND waiter.WaitingUntil > @now
           ) AS waiting,
           lease.Metadata AS metadata, @now AS now
    FROM reltask.Leases AS lease
    ORDER BY lease.Name;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
