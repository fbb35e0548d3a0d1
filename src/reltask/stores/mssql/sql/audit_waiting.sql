-- Purpose       Find jobs that have waited longer than their lock timeout, and say why.
-- Precondition  None. Reads every unclaimed job once.
-- Lock order    Locks nothing.
-- Returns       One row per kind, task and queue: the number of jobs, and the one that has waited
--               longest.
-- Parameters    :task is null for all tasks; :lock_timeout is in microseconds, for jobs that name
--               none.
-- See           SQL.md: nullable now, T-SQL batch, duration in minutes.
--
--     unclaimed     due, and a worker that knows the task was idle in its queue: a violation
--     backlog       due, and the workers that know the task were busy
--     unserved      due, and no live worker knows the task or serves its queue
--     unreclaimed   lock expired, and a live worker has not reclaimed the job: a violation
--     expired       lock expired, and there was no live worker to reclaim the job
--
-- Jobs of paused queues and tasks are meant to wait.
--
-- A worker was idle in a queue if it has run for a lock timeout, has a free place, holds no job of
-- the queue, and has ended no run of it within the lock timeout. A job waits from the latest of its
-- due time, its insertion, and the end of its last run.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @task nvarchar(256) = :task,
        @lock_timeout bigint = :lock_timeout;
DECLARE @settled_before datetime2(6) =
    DATEADD(
        MICROSECOND, -(@lock_timeout % 60000000),
        DATEADD(MINUTE, -(@lock_timeout / 60000000), @now)
    );

BEGIN TRY
    WITH
    alive AS (
        SELECT worker.Id, worker.Queues, worker.Tasks,
               CASE WHEN worker.StartedAt <= @settled_before THEN 1 ELSE 0 END AS Settled,
               CASE WHEN (
                        SELECT COUNT(*)
                        FROM reltask.Jobs AS job WITH (INDEX (IX_Jobs_Held), FORCESEEK)
                        WHERE job.LockedBy = worker.Id AND job.LockedBy IS NOT NULL
                    ) < worker.Concurrency
                    THEN 1 ELSE 0 END AS HasRoom
        FROM reltask.Workers AS worker
        WHERE worker.StoppedAt IS NULL AND worker.AliveUntil >= @now
    ),

    busy AS (
        SELECT Worker, Queue
        FROM reltask.Runs
        WHERE FinishedAt > @settled_before
        UNION
        SELECT LockedBy, Queue
        FROM reltask.Jobs
        WHERE LockedBy IS NOT NULL
    ),

    served AS (
        SELECT alive.Id, alive.Settled, alive.HasRoom,
               name.value COLLATE Latin1_General_100_BIN2 AS JobName,
               place.value COLLATE Latin1_General_100_BIN2 AS Queue
        FROM alive
        CROSS APPLY OPENJSON(alive.Tasks) AS name
        CROSS APPLY OPENJSON(alive.Queues) AS place
    ),

    serving AS (
        SELECT served.JobName, served.Queue,
               MAX(
                   CASE WHEN served.Settled = 1 AND served.HasRoom = 1 AND busy.Worker IS NULL
                        THEN 1 ELSE 0 END
               ) AS Idle
        FROM served
        LEFT JOIN busy ON busy.Worker = served.Id AND busy.Queue = served.Queue
        GROUP BY served.JobName, served.Queue
    ),

    due AS (
        SELECT job.Id, job.JobName, job.Queue,
               (
                   SELECT MAX(moment.At)
                   FROM (
                       SELECT job.DueAt AS At
                       UNION ALL
                       SELECT job.CreatedAt
                       UNION ALL
                       SELECT run.FinishedAt
                   ) AS moment
               ) AS Since,
               COALESCE(
                   job.LockTimeoutMs,
                   NULLIF(CAST(job.LockTimeoutMinutes AS bigint), 0) * 60000,
                   @lock_timeout / 1000
               ) AS PatienceMs
        FROM reltask.Jobs AS job
        LEFT JOIN reltask.Runs AS run ON run.JobId = job.Id AND run.Fence = job.Fence
        WHERE job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
          AND job.DueAt < @now
          AND NOT EXISTS (
              SELECT 1 FROM reltask.Pauses WHERE Kind = N'queue' AND Name = job.Queue
          )
          AND NOT EXISTS (
              SELECT 1 FROM reltask.Pauses WHERE Kind = N'task' AND Name = job.JobName
          )
    ),

    waiting AS (
        SELECT CASE WHEN serving.Idle = 1 THEN N'unclaimed'
                    WHEN serving.JobName IS NULL THEN N'unserved'
                    ELSE N'backlog' END AS Kind,
               due.JobName, due.Queue, due.Id, due.Since
        FROM due
        LEFT JOIN serving ON serving.JobName = due.JobName AND serving.Queue = due.Queue
        WHERE due.Since < DATEADD(
            MILLISECOND, -(due.PatienceMs % 60000), DATEADD(MINUTE, -(due.PatienceMs / 60000), @now)
        )
        UNION ALL
        SELECT CASE WHEN EXISTS (SELECT 1 FROM alive WHERE Settled = 1) THEN N'unreclaimed'
                    ELSE N'expired' END,
               job.JobName, job.Queue, job.Id, job.LockExpiresAt
        FROM reltask.Jobs AS job
        WHERE job.LockedBy IS NOT NULL
          AND job.LockExpiresAt < DATEADD(
              MILLISECOND, -(COALESCE(job.ClaimTimeoutMs, @lock_timeout / 1000) % 60000),
              DATEADD(MINUTE, -(COALESCE(job.ClaimTimeoutMs, @lock_timeout / 1000) / 60000), @now)
          )
    ),

    ranked AS (
        SELECT Kind, JobName, Queue, Id, Since,
               COUNT(*) OVER (PARTITION BY Kind, JobName, Queue) AS Jobs,
               ROW_NUMBER() OVER (PARTITION BY Kind, JobName, Queue ORDER BY Since, Id) AS Nth
        FROM waiting
        WHERE @task IS NULL OR JobName = @task
    )

    SELECT Kind AS kind, JobName AS task, Queue AS queue, Jobs AS jobs, Id AS job_id, Since AS since
    FROM ranked
    WHERE Nth = 1
    ORDER BY JobName, Queue, Kind;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
