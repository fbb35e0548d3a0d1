-- Purpose       Read which jobs have these (task, key) names, to report a key that is taken.
-- Precondition  None. Reads only what the role reltask_enqueue may read.
-- Lock order    Locks nothing.
-- Returns       One row per name that is taken: task, key, and the job's id.
-- See           SQL.md: T-SQL batch, JSON batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @names nvarchar(max) = :names;
DECLARE @given TABLE (
    JobName nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    JobKey  nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL
);

BEGIN TRY
    INSERT INTO @given (JobName, JobKey)
    SELECT name.task, name.[key]
    FROM OPENJSON(@names) WITH (task nvarchar(256) '$.task', [key] nvarchar(256) '$.key') AS name;

    SELECT job.JobName AS task, job.JobKey AS [key], job.Id AS id
    FROM @given AS given
    JOIN reltask.Jobs AS job WITH (INDEX (UX_Jobs_NameAndKey), FORCESEEK)
        ON job.JobName = given.JobName AND job.JobKey = given.JobKey
    WHERE job.JobKey IS NOT NULL;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
