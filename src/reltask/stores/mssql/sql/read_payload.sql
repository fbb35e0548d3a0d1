-- Purpose       Read what a job was given: of its row, or of the ledger row that ended it.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row if there is such a job. args is NULL if the ledger does not keep it.
-- See           SQL.md: T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @id uniqueidentifier = :id;

BEGIN TRY
    SELECT TOP (1) given.Args AS args, given.Headers AS headers, given.JobName AS task,
           given.Queue AS queue, given.Priority AS priority
    FROM (
        SELECT job.Args, job.Headers, job.JobName, job.Queue, job.Priority, 1 AS Nth,
               CAST(0 AS bigint) AS Fence
        FROM reltask.Jobs AS job
        WHERE job.Id = @id
        UNION ALL
        SELECT run.Args, run.Headers, run.JobName, run.Queue, run.Priority, 2, run.Fence
        FROM reltask.Runs AS run
        WHERE run.JobId = @id AND run.EndsJob = 1
    ) AS given
    ORDER BY given.Nth, given.Fence DESC;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
