-- Purpose       Count the runs that lost their lock, by task, outcome and worker.
-- Precondition  None. Reads every ledger row.
-- Lock order    Locks nothing.
-- Returns       One row per task, outcome and worker, with the error of the latest run.
-- Parameters    :task is null for all tasks; :limit.
-- See           SQL.md: T-SQL batch.
--
--     lost        the lock expired, and another worker reclaimed the job
--     abandoned   the worker found that it had lost the lock, or was about to, and gave up
--     returned    how many of these runs have a worker that was seen alive later: it was not dead
--
-- A returned worker was paused or cut off, and its later writes for the run were refused. A refused
-- write leaves no row, so it cannot be counted.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @task nvarchar(256) = :task,
        @limit int = :limit;

BEGIN TRY
    WITH
    ranked AS (
        SELECT run.JobName, run.Outcome, run.Worker, run.FinishedAt, run.Error,
               COUNT(*) OVER (PARTITION BY run.JobName, run.Outcome, run.Worker) AS Runs,
               SUM(CASE WHEN worker.HeartbeatAt > run.FinishedAt THEN 1 ELSE 0 END)
                   OVER (PARTITION BY run.JobName, run.Outcome, run.Worker) AS Returned,
               ROW_NUMBER() OVER (
                   PARTITION BY run.JobName, run.Outcome, run.Worker
                   ORDER BY run.FinishedAt DESC, run.Fence DESC
               ) AS Nth
        FROM reltask.Runs AS run
        LEFT JOIN reltask.Workers AS worker ON worker.Id = run.Worker
        WHERE run.Outcome IN (N'lost', N'abandoned')
          AND (@task IS NULL OR run.JobName = @task)
    )

    SELECT TOP (@limit)
           JobName AS task, Outcome AS outcome, Worker AS worker, Runs AS runs,
           Returned AS returned, FinishedAt AS last_at, Error AS reason
    FROM ranked
    WHERE Nth = 1
    ORDER BY FinishedAt DESC, JobName, Worker, Outcome;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
