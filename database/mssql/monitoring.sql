-- Queries for a dashboard or an alert. They only read; the role reltask_read may run them all.

-- 1. The leaders: how long each has held its lease, and when it last sent a heartbeat. The leader
--    is null if the lease is not held.
SELECT lease.Name AS name,
       CASE WHEN lease.Holder IS NOT NULL AND lease.ExpiresAt > SYSUTCDATETIME()
            THEN lease.Holder END AS leader,
       lease.Term AS term,
       DATEDIFF(SECOND, lease.AcquiredAt, SYSUTCDATETIME()) AS held_for,
       DATEDIFF(SECOND, lease.HeartbeatAt, SYSUTCDATETIME()) AS last_beat,
       DATEDIFF(SECOND, SYSUTCDATETIME(), lease.ExpiresAt) AS time_left,
       JSON_VALUE(lease.Metadata, '$.last_run') AS last_run,
       JSON_VALUE(lease.Metadata, '$.items') AS items,
       JSON_VALUE(lease.Metadata, '$.errors') AS errors,
       (
           SELECT COUNT(*)
           FROM reltask.LeaseWaiters AS waiter
           WHERE waiter.Name = lease.Name AND waiter.WaitingUntil > SYSUTCDATETIME()
       ) AS waiting
FROM reltask.Leases AS lease
ORDER BY lease.Name;

-- 2. Stuck leaders: a heartbeat within the last 30 seconds, leader for more than 5 minutes, and no
--    work finished for 5 minutes. Only those that publish when they last did. Any row is an alert:
--    `reltask leases release NAME` takes the lease away.
SELECT lease.Name AS name, lease.Holder AS holder, lease.Term AS term,
       lease.AcquiredAt AS acquired_at, lease.HeartbeatAt AS heartbeat_at,
       JSON_VALUE(lease.Metadata, '$.last_run') AS last_run
FROM reltask.Leases AS lease
WHERE lease.Holder IS NOT NULL
  AND lease.HeartbeatAt > DATEADD(SECOND, -30, SYSUTCDATETIME())
  AND lease.AcquiredAt < DATEADD(MINUTE, -5, SYSUTCDATETIME())
  AND (lease.Name = N'reltask:maintenance' OR JSON_VALUE(lease.Metadata, '$.last_run') IS NOT NULL)
  AND COALESCE(
      CAST(
          SWITCHOFFSET(
              CAST(JSON_VALUE(lease.Metadata, '$.last_run') AS datetimeoffset(6)), '+00:00'
          )
          AS datetime2(6)
      ),
      lease.AcquiredAt
  ) < DATEADD(MINUTE, -5, SYSUTCDATETIME())
ORDER BY lease.Name;

-- 3. Leases that candidates wait for, and that have not been held for more than a minute.
SELECT lease.Name AS name, lease.Term AS term, lease.ExpiresAt AS expires_at
FROM reltask.Leases AS lease
WHERE lease.ExpiresAt < DATEADD(MINUTE, -1, SYSUTCDATETIME())
  AND EXISTS (
      SELECT 1
      FROM reltask.LeaseWaiters AS waiter
      WHERE waiter.Name = lease.Name AND waiter.WaitingUntil > SYSUTCDATETIME()
  )
ORDER BY lease.Name;

-- 4. Dead workers: AliveUntil has passed without a shutdown.
SELECT worker.Id AS id, worker.Host AS host, worker.Pid AS pid, worker.HeartbeatAt AS heartbeat_at,
       worker.DeadAt AS dead_at,
       (SELECT COUNT(*) FROM reltask.Jobs AS job WHERE job.LockedBy = worker.Id) AS still_claimed
FROM reltask.Workers AS worker
WHERE worker.StoppedAt IS NULL
  AND (worker.DeadAt IS NOT NULL OR worker.AliveUntil < SYSUTCDATETIME())
ORDER BY worker.HeartbeatAt;

-- 5. The last hour by task: runs, failures in percent, mean duration and mean lateness in seconds.
SELECT metric.JobName AS task,
       SUM(metric.Succeeded + metric.Failed) AS runs,
       ROUND(100.0 * SUM(metric.Failed) / SUM(metric.Succeeded + metric.Failed), 1)
           AS failed_percent,
       SUM(metric.Seconds) / SUM(metric.Succeeded + metric.Failed) AS mean_seconds,
       SUM(metric.Late) / SUM(metric.Succeeded + metric.Failed) AS mean_late
FROM reltask.Metrics AS metric
WHERE metric.Minute > DATEADD(HOUR, -1, SYSUTCDATETIME())
GROUP BY metric.JobName
ORDER BY metric.JobName;

-- 6. Durable functions that wait, by task, and the next time at which one goes on by itself. In
--    the year 8999: only a signal or the end of its children wakes it.
SELECT job.JobName AS task, COUNT(*) AS suspended, MIN(job.DueAt) AS next_wake
FROM reltask.Jobs AS job
WHERE job.Suspended = 1 AND job.LockedBy IS NULL AND job.DeadAt IS NULL
GROUP BY job.JobName
ORDER BY job.JobName;

-- 7. Marks that no worker has folded for more than a minute, by job. Any row is an alert: no worker
--    runs, or a transaction that does not end has locked the job.
SELECT mark.JobId AS job_id, COUNT(*) AS marks, MIN(mark.At) AS oldest
FROM reltask.Marks AS mark
WHERE mark.At < DATEADD(MINUTE, -1, SYSUTCDATETIME())
GROUP BY mark.JobId
ORDER BY MIN(mark.At);

-- 8. Signals that no step has consumed for more than a day: their name may be wrong, or the
--    function does not come to its wait.
SELECT signal.JobId AS job_id, job.JobName AS task, job.JobKey AS [key], signal.Name AS name,
       COUNT(*) AS signals, MIN(signal.SentAt) AS oldest
FROM reltask.Signals AS signal
JOIN reltask.Jobs AS job ON job.Id = signal.JobId AND job.SlotNo = signal.SlotNo
WHERE signal.ConsumedBy IS NULL
  AND signal.SentAt < DATEADD(DAY, -1, SYSUTCDATETIME())
GROUP BY signal.JobId, job.JobName, job.JobKey, signal.Name
ORDER BY MIN(signal.SentAt);
