-- Purpose       find jobs that wait longer than their lock timeout, and say whether anybody could have helped them.
-- Precondition  none; reads only, and looks at every unclaimed job once.
-- Lock order    no locks.
-- Parameters    :task null for all tasks; :lock_timeout in microseconds, for jobs that name none of their own.
--
-- unclaimed     due, and a worker that knows the task stood idle in its queue all the while: a violation
-- backlog       due; the workers that know the task were busy
-- unserved      due; no live worker knows the task, or serves its queue
-- unreclaimed   claimed, the lock has ended, and a live worker has not taken it away: a violation
-- expired       claimed, the lock has ended, and no worker has been there to take it away
--
-- A worker stood idle in a queue if it has been there for a lock timeout, has a free place, holds no job of the queue,
-- and has ended no run of it within the lock timeout. A job waits since it was due, inserted, or freed by its last
-- run, whichever came last.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @task nvarchar(256) = :task,
        @lock_timeout bigint = :lock_timeout;
DECLARE @settled_before datetime2(6) =
    DATEADD(MICROSECOND, -(@lock_timeout % 60000000), DATEADD(MINUTE, -(@lock_timeout / 60000000), @now));

BEGIN TRY
    WITH alive AS (
        SELECT worker.Id, worker.Queues, worker.Tasks,
               CASE WHEN worker.StartedAt <= @settled_before THEN 1 ELSE 0 END AS Settled,
               CASE WHEN (SELECT COUNT(*) FROM reltask.Jobs AS job WHERE job.LockedBy = worker.Id) < worker.Concurrency
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
               MAX(CASE WHEN served.Settled = 1 AND served.HasRoom = 1 AND busy.Worker IS NULL
                        THEN 1 ELSE 0 END) AS Idle
        FROM served
        LEFT JOIN busy ON busy.Worker = served.Id AND busy.Queue = served.Queue
        GROUP BY served.JobName, served.Queue
    ),

    due AS (
        SELECT job.Id, job.JobName, job.Queue,
               (SELECT MAX(moment.At) FROM (
                    SELECT job.DueAt AS At UNION ALL SELECT job.CreatedAt UNION ALL SELECT run.FinishedAt
                ) AS moment) AS Since,
               COALESCE(job.LockTimeoutMs, NULLIF(CAST(job.LockTimeoutMinutes AS bigint), 0) * 60000,
                        @lock_timeout / 1000) AS PatienceMs
        FROM reltask.Jobs AS job
        LEFT JOIN reltask.Runs AS run ON run.JobId = job.Id AND run.Fence = job.Fence
        WHERE job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL AND job.DueAt < @now
    ),

    waiting AS (
        SELECT CASE WHEN serving.Idle = 1 THEN N'unclaimed' WHEN serving.JobName IS NULL THEN N'unserved'
                    ELSE N'backlog' END AS Kind,
               due.JobName, due.Queue, due.Id, due.Since
        FROM due
        LEFT JOIN serving ON serving.JobName = due.JobName AND serving.Queue = due.Queue
        WHERE due.Since < DATEADD(
            MILLISECOND, -(due.PatienceMs % 60000), DATEADD(MINUTE, -(due.PatienceMs / 60000), @now))
        UNION ALL
        SELECT CASE WHEN EXISTS (SELECT 1 FROM alive WHERE Settled = 1) THEN N'unreclaimed' ELSE N'expired' END,
               job.JobName, job.Queue, job.Id, job.LockExpiresAt
        FROM reltask.Jobs AS job
        WHERE job.LockedBy IS NOT NULL
          AND job.LockExpiresAt < DATEADD(
                MILLISECOND, -(COALESCE(job.ClaimTimeoutMs, @lock_timeout / 1000) % 60000),
                DATEADD(MINUTE, -(COALESCE(job.ClaimTimeoutMs, @lock_timeout / 1000) / 60000), @now))
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
