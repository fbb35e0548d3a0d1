-- Purpose       Read the definitions of the jobs with these (task, key) names, and the database's
--               time.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per job that exists.
-- See           SQL.md: nullable now, filtered index, T-SQL batch, JSON batch.
--
-- A row made by hand may have its interval in columns. It is returned as the schedule that it
-- means.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @names nvarchar(max) = :names;
DECLARE @given TABLE (
    JobName nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    JobKey  nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL
);

BEGIN TRY
    INSERT INTO @given (JobName, JobKey)
    SELECT name.task, name.[key]
    FROM OPENJSON(@names) WITH (task nvarchar(256) '$.task', [key] nvarchar(256) '$.key') AS name;

    -- One half per filtered index; one condition for both would read all jobs.
    WITH
    named AS (
        SELECT job.Id
        FROM @given AS given
        JOIN reltask.Jobs AS job WITH (INDEX (UX_Jobs_NameAndKey), FORCESEEK)
            ON job.JobName = given.JobName AND job.JobKey = given.JobKey AND job.JobKey IS NOT NULL
        UNION ALL
        SELECT job.Id
        FROM @given AS given
        JOIN reltask.Jobs AS job WITH (INDEX (UX_Jobs_Name), FORCESEEK)
            ON job.JobName = given.JobName AND job.JobKey IS NULL AND job.Recurring = 1
        WHERE given.JobKey IS NULL
    )
    SELECT job.Id AS id,
           job.JobName AS task,
           job.JobKey AS [key],
           CASE WHEN job.Recurring = 0 THEN NULL
                WHEN job.Schedule IS NOT NULL THEN job.Schedule
                WHEN job.IntervalMs IS NOT NULL
                THEN N'{"every":"' + CAST(job.IntervalMs AS nvarchar(20)) + N'ms"}'
                ELSE N'{"every":"' + CAST(job.IntervalMinutes AS nvarchar(20)) + N'm"}'
           END AS schedule,
           job.Declaration AS declaration,
           job.AppVersion AS app_version,
           job.NextRunTime AS next_run_time,
           @now AS now
    FROM named
    JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), FORCESEEK) ON job.Id = named.Id;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
