-- Purpose       Count workers, and jobs by state.
-- Precondition  None. Reads every job.
-- Lock order    Locks nothing.
-- Returns       One row. unknown is a JSON array: due jobs by task name, where no live worker knows
--               the name.
-- See           SQL.md: nullable now, T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME());

BEGIN TRY
    WITH
    alive AS (
        SELECT Tasks
        FROM reltask.Workers
        WHERE StoppedAt IS NULL AND AliveUntil >= @now
    ),

    known AS (
        SELECT DISTINCT name.value COLLATE Latin1_General_100_BIN2 AS JobName
        FROM alive
        CROSS APPLY OPENJSON(alive.Tasks) AS name
    ),

    job AS (
        SELECT JobName, DueAt, LockedBy, LockExpiresAt, PausedAt, DeadAt, Attempt, Suspended,
               CASE WHEN LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL
                    THEN 1 ELSE 0 END AS Claimable
        FROM reltask.Jobs
    )

    SELECT @now AS now,
           (SELECT COUNT(*) FROM alive) AS workers_alive,
           COUNT(CASE WHEN Claimable = 1 AND DueAt > @now AND Suspended = 0 THEN 1 END) AS ready,
           COUNT(CASE WHEN Claimable = 1 AND DueAt > @now AND Suspended = 1 THEN 1 END)
               AS suspended,
           COUNT(CASE WHEN Claimable = 1 AND DueAt <= @now THEN 1 END) AS due,
           COUNT(LockedBy) AS running,
           COUNT(CASE WHEN LockedBy IS NOT NULL AND LockExpiresAt < @now THEN 1 END) AS expired,
           COUNT(CASE WHEN LockedBy IS NULL AND DeadAt IS NULL AND Attempt > 0 THEN 1 END)
               AS failing,
           COUNT(CASE WHEN LockedBy IS NULL AND DeadAt IS NULL AND PausedAt IS NOT NULL THEN 1 END)
               AS paused,
           COUNT(DeadAt) AS dead,
           MIN(CASE WHEN Claimable = 1 THEN DueAt END) AS next_due,
           (
               SELECT strange.JobName AS task, COUNT(*) AS jobs
               FROM job AS strange
               WHERE strange.Claimable = 1 AND strange.DueAt <= @now
                 AND strange.JobName NOT IN (SELECT known.JobName FROM known)
               GROUP BY strange.JobName
               FOR JSON PATH
           ) AS unknown
    FROM job;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
