-- Purpose       rewrite the definition of a recurring job after its declaration in code has changed.
-- Precondition  the row's declaration is still the one that was seen, so that of two workers one wins.
-- Lock order    one row. A claimed slot is never moved: only the definition changes then, and the slot's end
--               computes the next time from it.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @task nvarchar(256) = :task,
        @key nvarchar(256) = :key,
        @queue nvarchar(128) = :queue,
        @priority smallint = :priority,
        @args nvarchar(max) = :args,
        @schedule nvarchar(max) = :schedule,
        @declaration nvarchar(128) = :declaration,
        @app_version nvarchar(128) = :app_version,
        @max_attempts int = :max_attempts,
        @lock_timeout_ms bigint = :lock_timeout_ms,
        @run_at datetime2(6) = :run_at,
        @delay bigint = :delay,
        @seen nvarchar(128) = :seen;
DECLARE @next datetime2(6) = COALESCE(
    @run_at,
    DATEADD(MICROSECOND, COALESCE(@delay, 0) % 1000000, DATEADD(SECOND, COALESCE(@delay, 0) / 1000000, @now)));

BEGIN TRY
    UPDATE reltask.Jobs
    SET Queue = @queue,
        Priority = @priority,
        Args = @args,
        Schedule = @schedule,
        IntervalMs = NULL,
        IntervalMinutes = 0,
        Declaration = @declaration,
        AppVersion = @app_version,
        MaxAttempts = @max_attempts,
        LockTimeoutMs = @lock_timeout_ms,
        LockTimeoutMinutes = 0,
        NextRunTime = CASE WHEN LockedBy IS NULL THEN @next ELSE NextRunTime END,
        NotBefore = CASE WHEN LockedBy IS NULL THEN NULL ELSE NotBefore END
    OUTPUT inserted.Id AS id
    WHERE JobName = @task
      AND (JobKey = @key OR (JobKey IS NULL AND @key IS NULL))
      AND Recurring = 1
      AND (Declaration = @seen OR (Declaration IS NULL AND @seen IS NULL));
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
