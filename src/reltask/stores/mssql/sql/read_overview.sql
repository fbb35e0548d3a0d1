-- Purpose       Read what the overview shows: one batch every two seconds, for all viewers.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row: the database's time, and JSON arrays of lanes by queue and task, claimed,
--               paused and dead jobs by queue and task, recurring tasks, live workers by what they
--               serve, workers by state, leases, the runs of the last hour by minute and by task,
--               and pauses. Times are microseconds since 1970. An empty array is NULL.
-- Parameters    :most is where counting stops. With more than two lanes each is counted up to a
--               smaller number, which is returned as most.
-- See           SQL.md: nullable now, T-SQL batch, filtered index.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @most bigint = :most,
        @epoch datetime2(6) = CONVERT(datetime2(6), '1970-01-01', 126),
        @isolated bit = 0,
        @queue nvarchar(128) = N'',
        @task nvarchar(256) = N'',
        @priority smallint = -1,
        @found bit = 1,
        @share bigint;
DECLARE @hour_ago datetime2(6) = DATEADD(HOUR, -1, @now),
        @first_minute datetime2(6) = DATEADD(MINUTE, -61, @now);
DECLARE @lanes TABLE (
    Isolated bit           NOT NULL,
    Queue    nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    JobName  nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Priority smallint      NOT NULL
);
DECLARE @limited TABLE (
    Queue   nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    JobName nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL
);
DECLARE @counted TABLE (
    Queue     nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    JobName   nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Due       bigint        NOT NULL,
    Oldest    datetime2(6)  NULL,
    Later     bigint        NOT NULL,
    Suspended bigint        NOT NULL,
    Failing   bigint        NOT NULL,
    Soonest   datetime2(6)  NULL
);
DECLARE @known TABLE (
    Queues      nvarchar(max) NOT NULL,
    Tasks       nvarchar(max) NOT NULL,
    Version     nvarchar(128) NOT NULL,
    AppVersion  nvarchar(128) NULL,
    Concurrency int           NOT NULL,
    HeartbeatAt datetime2(6)  NOT NULL,
    State       nvarchar(16)  NOT NULL
);

BEGIN TRY
    -- From the head of one lane to the head of the next: the task's next priority, the next task,
    -- the next queue, and last the isolated jobs. One index seek each.
    WHILE @found = 1
    BEGIN
        SET @found = 0;
        SELECT TOP (1) @found = 1, @priority = Priority
        FROM reltask.Jobs WITH (INDEX (IX_Jobs_Polling))
        WHERE Isolated = @isolated AND Queue = @queue AND JobName = @task AND Priority > @priority
          AND LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NULL
        ORDER BY Priority;

        IF @found = 0
            SELECT TOP (1) @found = 1, @task = JobName, @priority = Priority
            FROM reltask.Jobs WITH (INDEX (IX_Jobs_Polling))
            WHERE Isolated = @isolated AND Queue = @queue AND JobName > @task
              AND LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NULL
            ORDER BY JobName, Priority;

        IF @found = 0
            SELECT TOP (1) @found = 1, @queue = Queue, @task = JobName, @priority = Priority
            FROM reltask.Jobs WITH (INDEX (IX_Jobs_Polling))
            WHERE Isolated = @isolated AND Queue > @queue
              AND LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NULL
            ORDER BY Queue, JobName, Priority;

        IF @found = 0 AND @isolated = 0
        BEGIN
            SET @isolated = 1;
            SELECT TOP (1) @found = 1, @queue = Queue, @task = JobName, @priority = Priority
            FROM reltask.Jobs WITH (INDEX (IX_Jobs_Polling))
            WHERE Isolated = 1
              AND LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NULL
            ORDER BY Queue, JobName, Priority;
        END;

        IF @found = 1
            INSERT INTO @lanes (Isolated, Queue, JobName, Priority)
            VALUES (@isolated, @queue, @task, @priority);
    END;

    SET @found = 1;
    SET @queue = N'';
    SET @task = N'';

    -- The same for jobs with a limit, which have lanes of their own: one per queue and task.
    WHILE @found = 1
    BEGIN
        SET @found = 0;
        SELECT TOP (1) @found = 1, @task = JobName
        FROM reltask.Jobs WITH (INDEX (IX_Jobs_LimitedDue))
        WHERE Queue = @queue AND JobName > @task
          AND LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NOT NULL
        ORDER BY JobName;

        IF @found = 0
            SELECT TOP (1) @found = 1, @queue = Queue, @task = JobName
            FROM reltask.Jobs WITH (INDEX (IX_Jobs_LimitedDue))
            WHERE Queue > @queue
              AND LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NOT NULL
            ORDER BY Queue, JobName;

        IF @found = 1
            INSERT INTO @limited (Queue, JobName) VALUES (@queue, @task);
    END;

    SELECT @share = CASE WHEN COUNT(*) <= 2 THEN @most
                         WHEN COUNT(*) >= 200 THEN @most / 100
                         ELSE 2 * @most / COUNT(*) END
    FROM (
        SELECT Queue FROM @lanes
        UNION ALL
        SELECT Queue FROM @limited
    ) AS lane;

    INSERT INTO @counted (Queue, JobName, Due, Oldest, Later, Suspended, Failing, Soonest)
    SELECT lane.Queue, lane.JobName, due.Jobs, due.Oldest, later.Jobs, later.Suspended,
           later.Failing, later.Soonest
    FROM @lanes AS lane
    CROSS APPLY (
        SELECT COUNT(*) AS Jobs, MIN(part.DueAt) AS Oldest
        FROM (
            SELECT TOP (@share) job.DueAt
            FROM reltask.Jobs AS job WITH (INDEX (IX_Jobs_Polling))
            WHERE job.Isolated = lane.Isolated AND job.Queue = lane.Queue
              AND job.JobName = lane.JobName AND job.Priority = lane.Priority
              AND job.DueAt <= @now
              AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
              AND job.LimitKey IS NULL
            ORDER BY job.DueAt
        ) AS part
    ) AS due
    CROSS APPLY (
        SELECT COUNT(*) AS Jobs,
               COUNT(CASE WHEN part.Suspended = 1 THEN 1 END) AS Suspended,
               COUNT(CASE WHEN part.Attempt > 0 AND part.Suspended = 0 THEN 1 END) AS Failing,
               MIN(CASE WHEN part.Suspended = 0 THEN part.DueAt END) AS Soonest
        FROM (
            SELECT TOP (@share) job.DueAt, job.Suspended, job.Attempt
            FROM reltask.Jobs AS job WITH (INDEX (IX_Jobs_Polling))
            WHERE job.Isolated = lane.Isolated AND job.Queue = lane.Queue
              AND job.JobName = lane.JobName AND job.Priority = lane.Priority
              AND job.DueAt > @now
              AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
              AND job.LimitKey IS NULL
            ORDER BY job.DueAt
        ) AS part
    ) AS later;

    INSERT INTO @counted (Queue, JobName, Due, Oldest, Later, Suspended, Failing, Soonest)
    SELECT lane.Queue, lane.JobName, due.Jobs, due.Oldest, later.Jobs, later.Suspended,
           later.Failing, later.Soonest
    FROM @limited AS lane
    CROSS APPLY (
        SELECT COUNT(*) AS Jobs, MIN(part.DueAt) AS Oldest
        FROM (
            SELECT TOP (@share) job.DueAt
            FROM reltask.Jobs AS job WITH (INDEX (IX_Jobs_LimitedDue))
            WHERE job.Queue = lane.Queue AND job.JobName = lane.JobName
              AND job.DueAt <= @now
              AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
              AND job.LimitKey IS NOT NULL
            ORDER BY job.DueAt
        ) AS part
    ) AS due
    CROSS APPLY (
        SELECT COUNT(*) AS Jobs,
               COUNT(CASE WHEN part.Suspended = 1 THEN 1 END) AS Suspended,
               COUNT(CASE WHEN part.Attempt > 0 AND part.Suspended = 0 THEN 1 END) AS Failing,
               MIN(CASE WHEN part.Suspended = 0 THEN part.DueAt END) AS Soonest
        FROM (
            SELECT TOP (@share) job.DueAt, job.Suspended, job.Attempt
            FROM reltask.Jobs AS job WITH (INDEX (IX_Jobs_LimitedDue))
            WHERE job.Queue = lane.Queue AND job.JobName = lane.JobName
              AND job.DueAt > @now
              AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
              AND job.LimitKey IS NOT NULL
            ORDER BY job.DueAt
        ) AS part
    ) AS later;

    INSERT INTO @known (Queues, Tasks, Version, AppVersion, Concurrency, HeartbeatAt, State)
    SELECT Queues, Tasks, Version, AppVersion, Concurrency, HeartbeatAt,
           CASE WHEN StoppedAt IS NOT NULL THEN N'stopped'
                WHEN DeadAt IS NOT NULL OR AliveUntil < @now THEN N'dead'
                ELSE N'alive' END
    FROM reltask.Workers;

    SELECT DATEDIFF_BIG(MICROSECOND, @epoch, @now) AS now,
           COALESCE(@share, @most) AS most,
           (
               SELECT Queue AS queue, JobName AS task, SUM(Due) AS due,
                      MAX(CASE WHEN Due = @share THEN 1 ELSE 0 END) AS more_due,
                      DATEDIFF_BIG(MICROSECOND, @epoch, MIN(Oldest)) AS oldest,
                      SUM(Later) AS later,
                      MAX(CASE WHEN Later = @share THEN 1 ELSE 0 END) AS more_later,
                      SUM(Suspended) AS suspended, SUM(Failing) AS failing,
                      DATEDIFF_BIG(MICROSECOND, @epoch, MIN(Soonest)) AS soonest
               FROM @counted
               GROUP BY Queue, JobName
               ORDER BY Queue, JobName
               FOR JSON PATH
           ) AS lanes,
           (
               SELECT Queue AS queue, JobName AS task, COUNT(*) AS jobs,
                      COUNT(CASE WHEN LockExpiresAt < @now THEN 1 END) AS lately,
                      DATEDIFF_BIG(MICROSECOND, @epoch, MIN(LockExpiresAt)) AS at
               FROM reltask.Jobs
               WHERE LockedBy IS NOT NULL
               GROUP BY Queue, JobName
               ORDER BY Queue, JobName
               FOR JSON PATH
           ) AS claimed,
           (
               SELECT part.Queue AS queue, part.JobName AS task, COUNT(*) AS jobs, 0 AS lately,
                      DATEDIFF_BIG(MICROSECOND, @epoch, MAX(part.PausedAt)) AS at
               FROM (
                   SELECT TOP (@most) Queue, JobName, PausedAt
                   FROM reltask.Jobs
                   WHERE PausedAt IS NOT NULL
                   ORDER BY PausedAt DESC
               ) AS part
               GROUP BY part.Queue, part.JobName
               ORDER BY part.Queue, part.JobName
               FOR JSON PATH
           ) AS paused,
           (
               SELECT part.Queue AS queue, part.JobName AS task, COUNT(*) AS jobs,
                      COUNT(CASE WHEN part.DeadAt > @hour_ago THEN 1 END) AS lately,
                      DATEDIFF_BIG(MICROSECOND, @epoch, MAX(part.DeadAt)) AS at
               FROM (
                   SELECT TOP (@most) Queue, JobName, DeadAt
                   FROM reltask.Jobs
                   WHERE DeadAt IS NOT NULL
                   ORDER BY DeadAt DESC
               ) AS part
               GROUP BY part.Queue, part.JobName
               ORDER BY part.Queue, part.JobName
               FOR JSON PATH
           ) AS dead,
           (
               SELECT JobName AS task, COUNT(*) AS jobs,
                      DATEDIFF_BIG(MICROSECOND, @epoch, MAX(LastRunTime)) AS last_run_time,
                      DATEDIFF_BIG(
                          MICROSECOND, @epoch,
                          MIN(CASE WHEN LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL
                                   THEN DueAt END)
                      ) AS due_at
               FROM reltask.Jobs
               WHERE Recurring = 1
               GROUP BY JobName
               ORDER BY JobName
               FOR JSON PATH
           ) AS recurring,
           (
               SELECT Queues AS queues, Tasks AS tasks, Version AS version,
                      AppVersion AS app_version, COUNT(*) AS workers, SUM(Concurrency) AS places
               FROM @known
               WHERE State = N'alive'
               GROUP BY Queues, Tasks, Version, AppVersion
               ORDER BY Queues, Tasks, Version, AppVersion
               FOR JSON PATH
           ) AS fleet,
           (
               SELECT State AS state, COUNT(*) AS workers,
                      COUNT(CASE WHEN HeartbeatAt > @hour_ago THEN 1 END) AS lately,
                      DATEDIFF_BIG(MICROSECOND, @epoch, MAX(HeartbeatAt)) AS heartbeat_at
               FROM @known
               GROUP BY State
               ORDER BY State
               FOR JSON PATH
           ) AS states,
           (
               SELECT lease.Name AS name, lease.Holder AS holder, lease.Term AS term,
                      CASE WHEN lease.Holder IS NOT NULL AND lease.ExpiresAt > @now
                           THEN 1 ELSE 0 END AS held,
                      (
                          SELECT COUNT(*)
                          FROM reltask.LeaseWaiters AS waiter
                          WHERE waiter.Name = lease.Name AND waiter.WaitingUntil > @now
                      ) AS waiting,
                      DATEDIFF_BIG(MICROSECOND, @epoch, lease.ExpiresAt) AS expires_at
               FROM reltask.Leases AS lease
               ORDER BY lease.Name
               FOR JSON PATH
           ) AS leases,
           (
               SELECT DATEDIFF_BIG(MICROSECOND, @epoch, Minute) AS minute,
                      SUM(Succeeded) AS succeeded, SUM(Failed) AS failed
               FROM reltask.Metrics
               WHERE Minute > @first_minute
               GROUP BY Minute
               ORDER BY Minute
               FOR JSON PATH
           ) AS minutes,
           (
               SELECT JobName AS task, SUM(Succeeded) AS succeeded, SUM(Failed) AS failed,
                      SUM(Seconds) AS seconds, SUM(Late) AS late, MAX(LateMost) AS late_most
               FROM reltask.Metrics
               WHERE Minute > @first_minute
               GROUP BY JobName
               ORDER BY JobName
               FOR JSON PATH
           ) AS tasks,
           (
               SELECT Kind AS kind, Name AS name, Reason AS reason, PausedBy AS paused_by,
                      DATEDIFF_BIG(MICROSECOND, @epoch, PausedAt) AS paused_at
               FROM reltask.Pauses
               ORDER BY Kind, Name
               FOR JSON PATH
           ) AS pauses;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
