-- Purpose       Read how jobs have ended, for those who wait for their results.
-- Precondition  None.
-- Lock order    Locks nothing if READ_COMMITTED_SNAPSHOT is on; otherwise waits for a row that is
--               being written. Reads jobs before runs, as they are written: a job that is found to
--               be gone has its run in the ledger by then.
-- Returns       One row per job that is gone, dead or recurring: job_id, recurring, dead, and the
--               outcome, result and error of its last run in the ledger; nulls if there is none.
--               None for a job that has yet to end.
-- See           SQL.md: T-SQL batch, JSON batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @ids nvarchar(max) = :ids;
DECLARE @ended TABLE (
    JobId     uniqueidentifier NOT NULL PRIMARY KEY,
    Recurring bit              NOT NULL,
    Dead      bit              NOT NULL
);

BEGIN TRY
    INSERT INTO @ended (JobId, Recurring, Dead)
    SELECT given.id,
           COALESCE(job.Recurring, 0),
           CASE WHEN job.DeadAt IS NULL THEN 0 ELSE 1 END
    FROM OPENJSON(@ids) WITH (id uniqueidentifier '$.id') AS given
    LEFT JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), FORCESEEK) ON job.Id = given.id
    WHERE job.Id IS NULL OR job.DeadAt IS NOT NULL OR job.Recurring = 1;

    SELECT ended.JobId AS job_id, ended.Recurring AS recurring, ended.Dead AS dead,
           lastRun.Outcome AS outcome, lastRun.Result AS result, lastRun.Error AS error
    FROM @ended AS ended
    OUTER APPLY (
        SELECT TOP (1) run.Outcome, run.Result, run.Error
        FROM reltask.Runs AS run WITH (INDEX (PK_Runs), FORCESEEK)
        WHERE run.JobId = ended.JobId
        ORDER BY run.Fence DESC
    ) AS lastRun;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
