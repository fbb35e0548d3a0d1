-- Purpose       Read the limits as they are set.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per limit, by name.
-- See           SQL.md: T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

BEGIN TRY
    SELECT Name AS name, Running AS running, RateCount AS rate_count,
           RatePeriodMs AS rate_period_ms, Burst AS burst, Declaration AS declaration,
           AppVersion AS app_version
    FROM reltask.Limits
    ORDER BY Name;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
