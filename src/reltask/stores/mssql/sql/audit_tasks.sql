-- Purpose       Count slots and runs by task, and measure how late slots were first claimed.
-- Precondition  None. Reads every ledger row and every job.
-- Lock order    Locks nothing.
-- Returns       One row per task.
-- Parameters    :task is null for all tasks.
-- See           SQL.md: T-SQL batch.
--
-- ended counts each slot once; doubled counts the ends beyond the first. cut counts the jobs whose
-- history does not start with their first run, because the older part was pruned.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @task nvarchar(256) = :task;

BEGIN TRY
    WITH
    by_job AS (
        SELECT JobId,
               MIN(JobName) AS JobName,
               MIN(Fence) AS FirstFence,
               COUNT(
                   DISTINCT
                   CASE WHEN Outcome IN (N'succeeded', N'cancelled', N'skipped', N'discarded')
                        THEN SlotNo END
               ) AS Ended,
               COUNT(
                   CASE WHEN Outcome IN (N'succeeded', N'cancelled', N'skipped', N'discarded')
                        THEN 1 END
               ) AS Ends,
               COUNT(CASE WHEN Outcome = N'succeeded' THEN 1 END) AS Succeeded,
               COUNT(CASE WHEN Outcome = N'cancelled' THEN 1 END) AS Cancelled,
               COUNT(CASE WHEN Outcome = N'skipped' THEN 1 END) AS Skipped,
               COUNT(CASE WHEN Outcome = N'discarded' THEN 1 END) AS Discarded,
               COUNT(CASE WHEN Outcome = N'failed' THEN 1 END) AS Failed,
               COUNT(CASE WHEN Outcome = N'lost' THEN 1 END) AS Lost,
               COUNT(
                   CASE WHEN Outcome IN (N'snoozed', N'suspended', N'released', N'abandoned')
                        THEN 1 END
               ) AS GivenBack
        FROM reltask.Runs
        WHERE @task IS NULL OR JobName = @task
        GROUP BY JobId
        UNION ALL
        SELECT job.Id, job.JobName, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0
        FROM reltask.Jobs AS job
        WHERE (@task IS NULL OR job.JobName = @task)
          AND NOT EXISTS (SELECT 1 FROM reltask.Runs AS run WHERE run.JobId = job.Id)
    ),

    by_task AS (
        SELECT JobName,
               COUNT(*) AS Jobs,
               SUM(Ended) AS Ended,
               SUM(Ends - Ended) AS Doubled,
               SUM(Succeeded) AS Succeeded,
               SUM(Cancelled) AS Cancelled,
               SUM(Skipped) AS Skipped,
               SUM(Discarded) AS Discarded,
               SUM(Failed) AS Failed,
               SUM(Lost) AS Lost,
               SUM(GivenBack) AS GivenBack,
               COUNT(CASE WHEN FirstFence > 1 THEN 1 END) AS Cut
        FROM by_job
        GROUP BY JobName
    ),

    -- First attempts only: a retry waits on purpose.
    first_attempts AS (
        SELECT JobName,
               DATEDIFF_BIG(MICROSECOND, DueAt, ClaimedAt) / 1e6 AS Late,
               ROW_NUMBER() OVER (
                   PARTITION BY JobName
                   ORDER BY DATEDIFF_BIG(MICROSECOND, DueAt, ClaimedAt)
               ) AS Nth,
               COUNT(*) OVER (PARTITION BY JobName) AS OfAll
        FROM reltask.Runs
        WHERE Attempt = 1 AND ClaimedAt IS NOT NULL AND (@task IS NULL OR JobName = @task)
    ),

    lateness AS (
        SELECT JobName,
               MIN(CASE WHEN Nth = (OfAll + 1) / 2 THEN Late END) AS LateP50,
               MIN(CASE WHEN Nth = (95 * OfAll + 99) / 100 THEN Late END) AS LateP95,
               MAX(Late) AS LateMax
        FROM first_attempts
        GROUP BY JobName
    )

    SELECT by_task.JobName AS task, Jobs AS jobs, Ended AS ended, Doubled AS doubled,
           Succeeded AS succeeded, Cancelled AS cancelled, Skipped AS skipped,
           Discarded AS discarded, Failed AS failed, Lost AS lost, GivenBack AS given_back,
           Cut AS cut, LateP50 AS late_p50, LateP95 AS late_p95, LateMax AS late_max
    FROM by_task
    LEFT JOIN lateness ON lateness.JobName = by_task.JobName
    ORDER BY by_task.JobName;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
