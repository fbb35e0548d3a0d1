-- Purpose       List dead jobs, the latest first, each with the end of its last error.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per dead job. error is NULL if its last run has been pruned.
-- Parameters    :most is how many are read; :characters how much of each error.
-- See           SQL.md: T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @most int = :most,
        @characters int = :characters;

BEGIN TRY
    SELECT job.Id AS id, job.JobName AS task, job.JobKey AS [key], job.Queue AS queue,
           job.Fence AS fence, job.Attempt AS attempt, job.DeadAt AS dead_at,
           run.Outcome AS outcome, RIGHT(run.Error, @characters) AS error
    FROM (
        SELECT TOP (@most) Id, JobName, JobKey, Queue, Fence, Attempt, DeadAt
        FROM reltask.Jobs
        WHERE DeadAt IS NOT NULL
        ORDER BY DeadAt DESC
    ) AS job
    LEFT JOIN reltask.Runs AS run ON run.JobId = job.Id AND run.Fence = job.Fence
    ORDER BY job.DeadAt DESC, job.Id DESC;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
