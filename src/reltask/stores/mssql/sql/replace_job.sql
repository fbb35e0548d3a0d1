-- Purpose       Give the job that has a unique key other arguments, headers and another time.
-- Precondition  Unclaimed, not dead, and its run has never begun.
-- Lock order    One row. Waits for it, then checks it again.
-- Returns       One row with the id, if the job was changed.
-- See           SQL.md: nullable now, T-SQL batch, duration in minutes.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @task nvarchar(256) = :task,
        @unique_key nvarchar(64) = :unique_key,
        @args nvarchar(max) = :args,
        @headers nvarchar(max) = :headers,
        @run_at datetime2(6) = :run_at,
        @delay bigint = :delay;
DECLARE @replaced TABLE (Id uniqueidentifier NOT NULL);

BEGIN TRY
    UPDATE job
    SET Args = @args,
        Headers = @headers,
        NextRunTime = COALESCE(
            @run_at,
            DATEADD(
                MICROSECOND, COALESCE(@delay, 0) % 60000000,
                DATEADD(MINUTE, COALESCE(@delay, 0) / 60000000, @now)
            )
        ),
        NotBefore = NULL
    OUTPUT inserted.Id INTO @replaced (Id)
    FROM reltask.Keys AS held WITH (INDEX (PK_Keys), FORCESEEK)
    JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK) ON job.Id = held.JobId
    WHERE held.JobName = @task AND held.UniqueKey = @unique_key
      AND job.LockedBy IS NULL AND job.DeadAt IS NULL AND job.SlotStartedAt IS NULL
      AND job.Recurring = 0
    OPTION (LOOP JOIN, FORCE ORDER);

    SELECT Id AS id FROM @replaced;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
