-- Purpose       Update the definition of a recurring job after its declaration in code has changed.
-- Precondition  Declaration and next run time are still those that the caller has seen, so that of
--               two workers one wins, and a slot that has ended meanwhile does not come back. The
--               job is unclaimed, or claimed by this worker under :fence.
-- Lock order    One row. If it is locked, nothing is updated: a worker that starts must not wait
--               for another session. It declares again later.
-- Returns       One row with the id, if the job was updated.
-- See           SQL.md: nullable now, T-SQL batch, duration in minutes, primary-key lookup, skip
--               locked.
--
-- A running slot is never moved, nor is a suspended one: its worker computes the next time from the
-- schedule that it claimed, and other workers declare again when the slot has ended. The holder
-- need not wait, because it computes the next time from the new schedule. A slot whose time does
-- not change keeps its NotBefore, which a backoff, a snooze or an operator's run-now has set.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @task nvarchar(256) = :task,
        @key nvarchar(256) = :key,
        @queue nvarchar(128) = :queue,
        @priority smallint = :priority,
        @args nvarchar(max) = :args,
        @headers nvarchar(max) = :headers,
        @limit_key nvarchar(200) = :limit_key,
        @limits nvarchar(2000) = :limits,
        @schedule nvarchar(max) = :schedule,
        @declaration nvarchar(128) = :declaration,
        @app_version nvarchar(128) = :app_version,
        @max_attempts int = :max_attempts,
        @lock_timeout_ms bigint = :lock_timeout_ms,
        @run_at datetime2(6) = :run_at,
        @delay bigint = :delay,
        @seen nvarchar(128) = :seen,
        @seen_time datetime2(6) = :seen_time,
        @worker nvarchar(256) = :worker,
        @fence bigint = :fence,
        @id uniqueidentifier;
DECLARE @next datetime2(6) = COALESCE(
    @run_at,
    DATEADD(
        MICROSECOND, COALESCE(@delay, 0) % 60000000,
        DATEADD(MINUTE, COALESCE(@delay, 0) / 60000000, @now)
    )
);
DECLARE @written TABLE (Id uniqueidentifier NOT NULL);

BEGIN TRY
    -- Looked up first: one condition for jobs with and without a key would read all jobs.
    IF @key IS NULL
        SELECT @id = Id
        FROM reltask.Jobs
            WITH (INDEX (UX_Jobs_Name), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE JobName = @task AND JobKey IS NULL AND Recurring = 1;
    ELSE
        SELECT @id = Id
        FROM reltask.Jobs
            WITH (INDEX (UX_Jobs_NameAndKey), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE JobName = @task AND JobKey = @key AND JobKey IS NOT NULL;

    UPDATE job
    SET Queue = @queue,
        Priority = @priority,
        Args = @args,
        Headers = @headers,
        LimitKey = @limit_key,
        Limits = @limits,
        Schedule = @schedule,
        IntervalMs = NULL,
        IntervalMinutes = 0,
        Declaration = @declaration,
        AppVersion = @app_version,
        MaxAttempts = @max_attempts,
        LockTimeoutMs = @lock_timeout_ms,
        LockTimeoutMinutes = 0,
        NextRunTime = CASE WHEN job.LockedBy IS NULL AND job.Suspended = 0
                           THEN @next ELSE job.NextRunTime END,
        NotBefore = CASE WHEN job.LockedBy IS NULL AND job.Suspended = 0
                           AND job.NextRunTime <> @next
                         THEN NULL ELSE job.NotBefore END
    OUTPUT inserted.Id INTO @written (Id)
    FROM reltask.Jobs AS job
        WITH (INDEX (PK_Jobs), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
    WHERE job.Id = @id
      AND job.Recurring = 1
      AND (job.LockedBy IS NULL OR (job.LockedBy = @worker AND job.Fence = @fence))
      AND (job.Declaration = @seen OR (job.Declaration IS NULL AND @seen IS NULL))
      AND job.NextRunTime = @seen_time;

    SELECT Id AS id FROM @written;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
