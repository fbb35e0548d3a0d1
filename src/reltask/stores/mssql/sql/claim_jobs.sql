-- Purpose       Claim up to :limit due jobs for :worker, and say when to ask again.
-- Precondition  Due, unclaimed, not paused, not dead; the worker serves the queue and knows the
--               task, and neither is paused.
-- Lock order    IX_Jobs_Polling by priority and due time, then the row by RowNo; locked ones are
--               skipped. The UPDATE repeats the condition of its SELECT, so that correctness does
--               not depend on the hints.
-- Returns       One row per claim, or one row with a null id. Each begins with the database's time,
--               the next due time, the next lock expiry, whether there are marks to fold, the first
--               mark of a limit that this worker may take, and with :counts, if nothing was
--               claimed, this worker's rank among the idle ones and their number.
-- See           SQL.md: nullable now, skip locked, filtered index, index first, T-SQL batch,
--               duration in minutes, JSON batch, mark, paused lanes.
--
-- A lane is one (Isolated, queue, task, priority); IX_Jobs_Polling keeps each lane in order of due
-- time. One seek shows whether a task has any jobs, two more find the head of each of its lanes and
-- its first future job, so the cost depends on the number of tasks that the worker knows, not of
-- rows. An empty poll only reads, and begins no transaction.
--
-- A job whose last two runs were lost is isolated. With :isolated = 1 at most one of them is
-- claimed, in its order of priority and due time among the others; with 0, none.
--
-- Lanes are emptied in order of priority. So that low priorities do not starve, the lane whose head
-- has waited longest comes first, for :oldest places, and then again in its order.
--
-- A due head that another session has locked is reported as the next due time: it may be free
-- again. Progress stays until the slot ends: it is answered to the slot's next run.
--
-- A lock timeout that no constraint has refused must not make the batch fail. Outside of 1 ms to
-- 100 years it is claimed with the worker's own, and is answered as 1 ms more than 100 years: the
-- worker fails such a job.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @worker nvarchar(256) = :worker,
        @token uniqueidentifier = :token,
        @queues nvarchar(max) = :queues,
        @tasks nvarchar(max) = :tasks,
        @room int = :limit,
        @oldest int = :oldest,
        @lock_timeout_ms bigint = :lock_timeout_ms,
        @isolated bit = :isolated,
        @alive_for bigint = :alive_for,
        @counts bit = :counts;
DECLARE @longest_ms bigint = 3155760000000,
        @next_due datetime2(6),
        @next_expiry datetime2(6),
        @marked bit = 0,
        @committed bit = 0,
        @limited_at datetime2(6),
        @fleet_rank int,
        @fleet_size int,
        @fleet_idle int,
        @own_queues nvarchar(max),
        @own_tasks nvarchar(max),
        @nth int = -1,
        @most int,
        @apart bit,
        @queue nvarchar(128),
        @task nvarchar(256),
        @priority smallint,
        @head bigint,
        @head_due datetime2(6),
        @added int;
DECLARE @lanes TABLE (
    Nth      int           NOT NULL PRIMARY KEY,
    Isolated bit           NOT NULL,
    Queue    nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    JobName  nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Priority smallint      NOT NULL,
    Head     bigint        NOT NULL,
    DueAt    datetime2(6)  NOT NULL,
    NextAt   datetime2(6)  NULL,
    Most     int           NOT NULL
);
DECLARE @claimed TABLE (
    row_no bigint NOT NULL PRIMARY KEY, id uniqueidentifier NOT NULL, fence bigint NOT NULL,
    task nvarchar(256) NOT NULL, [key] nvarchar(256) NULL, args nvarchar(max) NOT NULL,
    queue nvarchar(128) NOT NULL, priority smallint NOT NULL, recurring bit NOT NULL,
    schedule nvarchar(max) NULL, interval_ms bigint NULL, interval_minutes int NOT NULL,
    slot_no bigint NOT NULL, next_run_time datetime2(6) NOT NULL, due_at datetime2(6) NOT NULL,
    slot_started_at datetime2(6) NOT NULL, locked_at datetime2(6) NOT NULL, attempt int NOT NULL,
    max_attempts int NULL, claim_timeout_ms bigint NOT NULL, isolated bit NOT NULL,
    steps int NOT NULL, parent_id uniqueidentifier NULL, progress nvarchar(max) NULL,
    headers nvarchar(max) NULL, cancel_slot bigint NULL
);

BEGIN TRY
    -- The worker's own heartbeat, at most every five seconds; it stays even if the claim fails.
    UPDATE reltask.Workers WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
    SET HeartbeatAt = @now,
        AliveUntil = DATEADD(
            MICROSECOND, @alive_for % 60000000,
            DATEADD(MINUTE, @alive_for / 60000000, @now)
        ),
        DeadAt = NULL
    WHERE Id = @worker AND (HeartbeatAt < DATEADD(SECOND, -5, @now) OR DeadAt IS NOT NULL);

    INSERT INTO @lanes (Nth, Isolated, Queue, JobName, Priority, Head, DueAt, NextAt, Most)
    SELECT ROW_NUMBER() OVER (ORDER BY level.Priority, head.DueAt), kind.Isolated, queue.Name,
           task.Name, level.Priority, head.RowNo, head.DueAt, future.DueAt,
           @room
    FROM (VALUES (CAST(0 AS bit)), (CAST(1 AS bit))) AS kind (Isolated)
    CROSS JOIN (
        SELECT DISTINCT CAST(value AS nvarchar(128)) COLLATE Latin1_General_100_BIN2 AS Name
        FROM OPENJSON(@queues)
        WHERE NOT EXISTS (
            SELECT 1
            FROM reltask.Pauses AS pause WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
            WHERE pause.Kind = N'queue'
              AND pause.Name = CAST(value AS nvarchar(128)) COLLATE Latin1_General_100_BIN2
        )
    ) AS queue
    CROSS JOIN (
        SELECT DISTINCT CAST(value AS nvarchar(256)) COLLATE Latin1_General_100_BIN2 AS Name
        FROM OPENJSON(@tasks)
        WHERE NOT EXISTS (
            SELECT 1
            FROM reltask.Pauses AS pause WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
            WHERE pause.Kind = N'task'
              AND pause.Name = CAST(value AS nvarchar(256)) COLLATE Latin1_General_100_BIN2
        )
    ) AS task
    CROSS APPLY (
        SELECT TOP (1) 1 AS Found
        FROM reltask.Jobs AS job
            WITH (INDEX (IX_Jobs_Polling), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE job.Isolated = kind.Isolated AND job.Queue = queue.Name AND job.JobName = task.Name
          AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
          AND job.LimitKey IS NULL
    ) AS something
    CROSS JOIN (
        SELECT CAST(number AS smallint) AS Priority
        FROM (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS numbers (number)
    ) AS level
    CROSS APPLY (
        SELECT TOP (1) job.RowNo, job.DueAt
        FROM reltask.Jobs AS job
            WITH (INDEX (IX_Jobs_Polling), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE job.Isolated = kind.Isolated AND job.Queue = queue.Name AND job.JobName = task.Name
          AND job.Priority = level.Priority
          AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
          AND job.LimitKey IS NULL
        ORDER BY job.DueAt
    ) AS head
    OUTER APPLY (
        SELECT TOP (1) job.DueAt
        FROM reltask.Jobs AS job
            WITH (INDEX (IX_Jobs_Polling), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE job.Isolated = kind.Isolated AND job.Queue = queue.Name AND job.JobName = task.Name
          AND job.Priority = level.Priority AND job.DueAt > @now
          AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
          AND job.LimitKey IS NULL
        ORDER BY job.DueAt
    ) AS future
    WHERE kind.Isolated = 0 OR @isolated = 1
    OPTION (FORCE ORDER);

    SELECT @next_due = MIN(NextAt) FROM @lanes;

    IF @oldest > 0
        INSERT INTO @lanes (Nth, Isolated, Queue, JobName, Priority, Head, DueAt, NextAt, Most)
        SELECT 0, first.Isolated, first.Queue, first.JobName, first.Priority, first.Head,
               first.DueAt, NULL, @oldest
        FROM (SELECT TOP (1) * FROM @lanes WHERE DueAt <= @now ORDER BY DueAt, Nth) AS first
        WHERE first.Nth > 1;

    IF @room > 0 AND EXISTS (SELECT 1 FROM @lanes WHERE DueAt <= @now)
    BEGIN
        BEGIN TRANSACTION;

        -- One lane after the other, until there is no room left.
        WHILE @room > 0
        BEGIN
            SET @head = NULL;
            SELECT TOP (1) @nth = Nth, @apart = Isolated, @queue = Queue, @task = JobName,
                   @priority = Priority, @head = Head, @head_due = DueAt,
                   @most = CASE WHEN Isolated = 1 THEN 1 WHEN Most < @room THEN Most ELSE @room END
            FROM @lanes
            WHERE Nth > @nth AND DueAt <= @now AND (Isolated = 0 OR @isolated = 1)
            ORDER BY Nth;
            IF @head IS NULL BREAK;

            UPDATE job
            SET LockedBy = @worker,
                ClaimToken = @token,
                LockedAt = @now,
                HeartbeatAt = @now,
                ClaimTimeoutMs = CASE
                    WHEN job.LockTimeoutMs NOT BETWEEN 1 AND @longest_ms
                      OR job.LockTimeoutMinutes NOT BETWEEN 0 AND @longest_ms / 60000
                    THEN @longest_ms + 1
                    ELSE COALESCE(
                        job.LockTimeoutMs,
                        NULLIF(job.LockTimeoutMinutes, 0) * CAST(60000 AS bigint),
                        @lock_timeout_ms
                    )
                END,
                LockExpiresAt = CASE
                    WHEN job.LockTimeoutMs BETWEEN 1 AND @longest_ms
                    THEN DATEADD(
                        MILLISECOND, job.LockTimeoutMs % 60000,
                        DATEADD(MINUTE, job.LockTimeoutMs / 60000, @now)
                    )
                    WHEN job.LockTimeoutMs IS NULL
                      AND job.LockTimeoutMinutes BETWEEN 1 AND @longest_ms / 60000
                    THEN DATEADD(MINUTE, job.LockTimeoutMinutes, @now)
                    ELSE DATEADD(
                        MILLISECOND, @lock_timeout_ms % 60000,
                        DATEADD(MINUTE, @lock_timeout_ms / 60000, @now)
                    )
                END,
                Fence = job.Fence + 1,
                Attempt = job.Attempt + 1,
                SlotStartedAt = COALESCE(job.SlotStartedAt, @now),
                Suspended = 0
            OUTPUT inserted.RowNo, inserted.Id, inserted.Fence, inserted.JobName, inserted.JobKey,
                   inserted.Args, inserted.Queue, inserted.Priority, inserted.Recurring,
                   inserted.Schedule, inserted.IntervalMs, inserted.IntervalMinutes,
                   inserted.SlotNo, inserted.NextRunTime, inserted.DueAt, inserted.SlotStartedAt,
                   inserted.LockedAt, inserted.Attempt, inserted.MaxAttempts,
                   inserted.ClaimTimeoutMs, inserted.Isolated, inserted.Steps, inserted.ParentId,
                   inserted.Progress, inserted.Headers, inserted.CancelSlot
            INTO @claimed
            FROM (
                SELECT TOP (@most) free.RowNo
                FROM reltask.Jobs AS free
                    WITH (
                        INDEX (IX_Jobs_Polling), FORCESEEK, READPAST, UPDLOCK, ROWLOCK,
                        READCOMMITTEDLOCK
                    )
                WHERE free.Isolated = @apart AND free.Queue = @queue AND free.JobName = @task
                  AND free.Priority = @priority AND free.DueAt <= @now
                  AND free.LockedBy IS NULL AND free.PausedAt IS NULL AND free.DeadAt IS NULL
                  AND free.LimitKey IS NULL
                ORDER BY free.DueAt
            ) AS due
            JOIN reltask.Jobs AS job
                WITH (INDEX (UQ_Jobs_RowNo), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
                ON job.RowNo = due.RowNo
            WHERE job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
              AND job.LimitKey IS NULL
              AND job.Isolated = @apart AND job.DueAt <= @now
            OPTION (LOOP JOIN, FORCE ORDER);
            SET @added = @@ROWCOUNT;

            SET @room = @room - @added;
            IF @apart = 1 AND @added > 0 SET @isolated = 0;  -- one is enough
            IF @room > 0 AND NOT EXISTS (SELECT 1 FROM @claimed WHERE row_no = @head)
                SET @next_due = CASE WHEN @next_due < @head_due THEN @next_due ELSE @head_due END;
        END;

        COMMIT TRANSACTION;
        SET @committed = 1;
    END;

    SELECT TOP (1) @next_expiry = LockExpiresAt
    FROM reltask.Jobs WITH (INDEX (IX_Jobs_Expiring), READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE LockedBy IS NOT NULL
    ORDER BY LockExpiresAt;

    IF EXISTS (
        SELECT 1
        FROM reltask.Marks WITH (INDEX (PK_Marks), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE Queue = N'' AND Task = N'' AND At <= @now
    )
        SET @marked = 1;

    -- The first mark of a limit that this worker may take: see claim_limited.sql.
    IF EXISTS (
        SELECT 1
        FROM reltask.Marks WITH (INDEX (PK_Marks), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE Queue = N'' AND Task > N''
    ) OR EXISTS (
        SELECT 1
        FROM reltask.Marks WITH (INDEX (PK_Marks), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE Queue > N''
    )
        SELECT @limited_at = MIN(first.At)
        FROM (
            SELECT CAST(N'' AS nvarchar(128)) COLLATE Latin1_General_100_BIN2 AS Queue,
                   CAST(N'limit' AS nvarchar(256)) COLLATE Latin1_General_100_BIN2 AS Task
            UNION ALL
            SELECT queue.Name, task.Name
            FROM (
                SELECT DISTINCT CAST(value AS nvarchar(128)) COLLATE Latin1_General_100_BIN2 AS Name
                FROM OPENJSON(@queues)
                WHERE NOT EXISTS (
                    SELECT 1
                    FROM reltask.Pauses AS pause WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
                    WHERE pause.Kind = N'queue'
                      AND pause.Name = CAST(value AS nvarchar(128)) COLLATE Latin1_General_100_BIN2
                )
            ) AS queue
            CROSS JOIN (
                SELECT DISTINCT CAST(value AS nvarchar(256)) COLLATE Latin1_General_100_BIN2 AS Name
                FROM OPENJSON(@tasks)
                WHERE NOT EXISTS (
                    SELECT 1
                    FROM reltask.Pauses AS pause WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
                    WHERE pause.Kind = N'task'
                      AND pause.Name = CAST(value AS nvarchar(256)) COLLATE Latin1_General_100_BIN2
                )
            ) AS task
        ) AS lane
        CROSS APPLY (
            SELECT TOP (1) mark.At
            FROM reltask.Marks AS mark
                WITH (INDEX (PK_Marks), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
            WHERE mark.Queue = lane.Queue AND mark.Task = lane.Task
            ORDER BY mark.At
        ) AS first
        OPTION (FORCE ORDER);

    -- A worker that looked in vain is idle, until it has filled its places.
    IF @counts = 1 AND NOT EXISTS (SELECT 1 FROM @claimed)
    BEGIN
        UPDATE reltask.Workers WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        SET Idle = 1
        WHERE Id = @worker AND Idle = 0;

        SELECT @own_queues = Queues, @own_tasks = Tasks
        FROM reltask.Workers WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE Id = @worker;

        SELECT @fleet_rank = COUNT(CASE WHEN Queues = @own_queues AND Tasks = @own_tasks
                                             AND Id < @worker THEN 1 END),
               @fleet_size = COUNT(CASE WHEN Queues = @own_queues AND Tasks = @own_tasks
                                        THEN 1 END) + 1,
               @fleet_idle = COUNT(*) + 1
        FROM reltask.Workers WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE Idle = 1 AND AliveUntil >= @now AND StoppedAt IS NULL AND DeadAt IS NULL
          AND Id <> @worker;
    END;
    ELSE IF @room <= 0
        UPDATE reltask.Workers WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        SET Idle = 0
        WHERE Id = @worker AND Idle = 1;

    SELECT @now AS now, @next_due AS next_due, @next_expiry AS next_expiry, @marked AS marked,
           @limited_at AS limited_at, @fleet_rank AS fleet_rank, @fleet_size AS fleet_size,
           @fleet_idle AS fleet_idle,
           CASE WHEN recurring = 0 OR schedule IS NOT NULL THEN schedule
                WHEN interval_ms IS NOT NULL THEN CONCAT(N'{"every":"', interval_ms, N'ms"}')
                ELSE CONCAT(N'{"every":"', interval_minutes, N'm"}') END AS schedule,
           CASE WHEN parent_id IS NULL THEN 0 ELSE 1 END AS has_parent,
           CASE WHEN cancel_slot = slot_no THEN 1 ELSE 0 END AS cancelled, id, fence, task, [key],
           args, queue, priority, slot_no, next_run_time, due_at, slot_started_at, locked_at,
           attempt, max_attempts, claim_timeout_ms, isolated, steps, progress, headers
    FROM (SELECT 1 AS Always) AS header
    LEFT JOIN @claimed AS claimed ON 1 = 1
    ORDER BY priority, due_at, id;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message,
           @committed AS committed;
END CATCH;
