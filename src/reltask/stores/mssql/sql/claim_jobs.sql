-- Purpose       Claim up to :limit due jobs for :worker, and say when to ask again.
-- Precondition  Due, unclaimed, not paused, not dead; the worker serves the queue and knows the
--               task.
-- Lock order    Rows by priority and due time; locked rows are skipped. Each UPDATE repeats the
--               condition of its SELECT, so that correctness does not depend on the hints.
-- Returns       One row per claim, or one row with a null id. Each begins with the database's time,
--               the next due time, the next lock expiry, and whether there are marks to fold.
-- See           SQL.md: nullable now, skip locked, filtered index, T-SQL batch, duration in
--               minutes, JSON batch, mark.
--
-- A lane is one (Isolated, queue, task, priority); IX_Jobs_Polling keeps each lane in order of due
-- time. One seek shows whether a task has any jobs, one more finds the head of each of its lanes,
-- so the cost depends on the number of tasks that the worker knows, not of rows. An empty poll only
-- reads, and begins no transaction.
--
-- A job whose last two runs were lost is isolated. With :isolated = 1 at most one of them is
-- claimed, in its order of priority and due time among the others; with 0, none.
--
-- Progress stays until the slot ends: it is answered to the slot's next run.
--
-- A lock timeout that no constraint has refused must not make the batch fail. Outside of 1 ms to
-- 100 years it is claimed with the worker's own, and is answered as 1 ms more than 100 years: the
-- worker fails such a job.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @worker nvarchar(256) = :worker,
        @token uniqueidentifier = :token,
        @queues nvarchar(max) = :queues,
        @tasks nvarchar(max) = :tasks,
        @limit int = :limit,
        @lock_timeout_ms bigint = :lock_timeout_ms,
        @isolated bit = :isolated,
        @alive_for bigint = :alive_for;
DECLARE @longest_ms bigint = 3155760000000,
        @next_due datetime2(6),
        @next_expiry datetime2(6),
        @marked bit = 0,
        @room int = @limit,
        @nth int = 0,
        @tries int = 0,
        @added int,
        @lane_isolated bit,
        @queue nvarchar(128),
        @task nvarchar(256),
        @priority smallint;
DECLARE @known_queues TABLE (Name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @known_tasks TABLE (Name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @lanes TABLE (
    Nth      int           NOT NULL,
    Isolated bit           NOT NULL,
    Queue    nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    JobName  nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Priority smallint      NOT NULL,
    DueAt    datetime2(6)  NOT NULL
);
DECLARE @taken TABLE (Id uniqueidentifier NOT NULL);
DECLARE @claimed TABLE (
    Id             uniqueidentifier NOT NULL,
    Fence          bigint           NOT NULL,
    JobName        nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    JobKey         nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL,
    Args           nvarchar(max)    NOT NULL,
    Queue          nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Priority       smallint         NOT NULL,
    Schedule       nvarchar(max)    NULL,
    SlotNo         bigint           NOT NULL,
    NextRunTime    datetime2(6)     NOT NULL,
    DueAt          datetime2(6)     NOT NULL,
    SlotStartedAt  datetime2(6)     NOT NULL,
    LockedAt       datetime2(6)     NOT NULL,
    Attempt        int              NOT NULL,
    MaxAttempts    int              NULL,
    ClaimTimeoutMs bigint           NOT NULL,
    Isolated       bit              NOT NULL,
    Steps          int              NOT NULL,
    HasParent      bit              NOT NULL,
    Progress       nvarchar(max)    NULL,
    Headers        nvarchar(max)    NULL
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

    INSERT INTO @known_queues (Name)
    SELECT DISTINCT value COLLATE Latin1_General_100_BIN2
    FROM OPENJSON(@queues);

    INSERT INTO @known_tasks (Name)
    SELECT DISTINCT value COLLATE Latin1_General_100_BIN2
    FROM OPENJSON(@tasks);

    -- Babelfish does not decode the escapes of JSON strings.
    IF SERVERPROPERTY('Babelfish') IS NOT NULL
    BEGIN
        UPDATE @known_queues
        SET Name =
                REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(Name, N'\\', NCHAR(57344)),
                N'\"', N'"'), N'\n', NCHAR(10)), N'\r', NCHAR(13)),
                N'\t', NCHAR(9)), NCHAR(57344), N'\');
        UPDATE @known_tasks
        SET Name =
                REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(Name, N'\\', NCHAR(57344)),
                N'\"', N'"'), N'\n', NCHAR(10)), N'\r', NCHAR(13)),
                N'\t', NCHAR(9)), NCHAR(57344), N'\');
    END;

    INSERT INTO @lanes (Nth, Isolated, Queue, JobName, Priority, DueAt)
    SELECT ROW_NUMBER() OVER (ORDER BY level.Priority, head.DueAt), kind.Isolated, queue.Name,
           task.Name, level.Priority, head.DueAt
    FROM (VALUES (CAST(0 AS bit)), (CAST(1 AS bit))) AS kind (Isolated)
    CROSS JOIN @known_queues AS queue
    CROSS JOIN @known_tasks AS task
    CROSS APPLY (
        SELECT TOP (1) 1 AS Found
        FROM reltask.Jobs AS job WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE job.Isolated = kind.Isolated AND job.Queue = queue.Name AND job.JobName = task.Name
          AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
    ) AS something
    CROSS JOIN (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS level (Priority)
    CROSS APPLY (
        SELECT TOP (1) job.DueAt
        FROM reltask.Jobs AS job WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE job.Isolated = kind.Isolated
          AND job.Queue = queue.Name AND job.JobName = task.Name AND job.Priority = level.Priority
          AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
        ORDER BY job.DueAt
    ) AS head
    WHERE kind.Isolated = 0 OR @isolated = 1;

    IF @room > 0 AND EXISTS (SELECT 1 FROM @lanes WHERE DueAt <= @now)
    BEGIN
        BEGIN TRANSACTION;

        -- One lane after the other, until there is no room left.
        WHILE @room > 0
        BEGIN
            SET @queue = NULL;
            SELECT TOP (1) @nth = Nth, @lane_isolated = Isolated, @queue = Queue, @task = JobName,
                   @priority = Priority
            FROM @lanes
            WHERE Nth > @nth AND DueAt <= @now AND (Isolated = 0 OR @isolated = 1)
            ORDER BY Nth;
            IF @queue IS NULL BREAK;

            UPDATE reltask.Jobs WITH (READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
            SET LockedBy = @worker,
                ClaimToken = @token,
                LockedAt = @now,
                HeartbeatAt = @now,
                ClaimTimeoutMs = CASE
                    WHEN LockTimeoutMs NOT BETWEEN 1 AND @longest_ms
                      OR LockTimeoutMinutes NOT BETWEEN 0 AND @longest_ms / 60000
                    THEN @longest_ms + 1
                    ELSE COALESCE(
                        LockTimeoutMs,
                        NULLIF(LockTimeoutMinutes, 0) * CAST(60000 AS bigint),
                        @lock_timeout_ms
                    )
                END,
                LockExpiresAt = CASE
                    WHEN LockTimeoutMs BETWEEN 1 AND @longest_ms
                    THEN DATEADD(
                        MILLISECOND, LockTimeoutMs % 60000,
                        DATEADD(MINUTE, LockTimeoutMs / 60000, @now)
                    )
                    WHEN LockTimeoutMs IS NULL
                      AND LockTimeoutMinutes BETWEEN 1 AND @longest_ms / 60000
                    THEN DATEADD(MINUTE, LockTimeoutMinutes, @now)
                    ELSE DATEADD(
                        MILLISECOND, @lock_timeout_ms % 60000,
                        DATEADD(MINUTE, @lock_timeout_ms / 60000, @now)
                    )
                END,
                Fence = Fence + 1,
                Attempt = Attempt + 1,
                SlotStartedAt = COALESCE(SlotStartedAt, @now),
                Suspended = 0
            OUTPUT inserted.Id INTO @taken (Id)
            WHERE Id IN (
                SELECT TOP (CASE WHEN @lane_isolated = 1 THEN 1 ELSE @room END) job.Id
                FROM reltask.Jobs AS job WITH (READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
                WHERE job.Isolated = @lane_isolated
                  AND job.Queue = @queue AND job.JobName = @task AND job.Priority = @priority
                  AND job.DueAt <= @now
                  AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
                ORDER BY job.DueAt
            )
              AND LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL
              AND Isolated = @lane_isolated AND DueAt <= @now;

            SET @added = @@ROWCOUNT;
            SET @room = @room - @added;
            IF @lane_isolated = 1 AND @added > 0 SET @isolated = 0;  -- one is enough

            -- If the server waits for locked rows instead of skipping them, another worker may have
            -- claimed these rows first: try this lane again.
            IF @room > 0 AND @tries < 100 AND @lane_isolated <= @isolated AND EXISTS (
                SELECT 1
                FROM reltask.Jobs AS job WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
                WHERE job.Isolated = @lane_isolated
                  AND job.Queue = @queue AND job.JobName = @task AND job.Priority = @priority
                  AND job.DueAt <= @now
                  AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
            )
                SELECT @nth = @nth - 1, @tries = @tries + 1;
        END;

        -- Read back from the rows, which no other session can change now.
        INSERT INTO @claimed
        SELECT job.Id, job.Fence, job.JobName, job.JobKey, job.Args, job.Queue, job.Priority,
               CASE WHEN job.Recurring = 0 THEN NULL
                    WHEN job.Schedule IS NOT NULL THEN job.Schedule
                    WHEN job.IntervalMs IS NOT NULL
                    THEN N'{"every":"' + CAST(job.IntervalMs AS nvarchar(20)) + N'ms"}'
                    ELSE N'{"every":"' + CAST(job.IntervalMinutes AS nvarchar(20)) + N'm"}'
               END,
               job.SlotNo, job.NextRunTime, job.DueAt, job.SlotStartedAt, job.LockedAt,
               job.Attempt, job.MaxAttempts, job.ClaimTimeoutMs, job.Isolated, job.Steps,
               CASE WHEN job.ParentId IS NULL THEN 0 ELSE 1 END, job.Progress, job.Headers
        FROM reltask.Jobs AS job WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE job.Id IN (SELECT Id FROM @taken) AND job.LockedBy = @worker;

        COMMIT TRANSACTION;
        SET @room = @limit - (SELECT COUNT(*) FROM @claimed);
    END;

    SELECT @next_due = MIN(soon.DueAt)
    FROM (
        -- The first future job of each lane.
        SELECT future.DueAt
        FROM @lanes AS lane
        CROSS APPLY (
            SELECT TOP (1) job.DueAt
            FROM reltask.Jobs AS job WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
            WHERE job.Isolated = lane.Isolated
              AND job.Queue = lane.Queue AND job.JobName = lane.JobName
              AND job.Priority = lane.Priority
              AND job.DueAt > @now
              AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
            ORDER BY job.DueAt
        ) AS future
        UNION ALL
        -- A due head that was not claimed although there was room: another worker has locked it.
        SELECT lane.DueAt
        FROM @lanes AS lane
        WHERE lane.DueAt <= @now AND @room > 0 AND (lane.Isolated = 0 OR @isolated = 1)
          AND NOT EXISTS (
              SELECT 1
              FROM @claimed AS claimed
              WHERE claimed.Isolated = lane.Isolated
                AND claimed.Queue = lane.Queue AND claimed.JobName = lane.JobName
                AND claimed.Priority = lane.Priority AND claimed.DueAt = lane.DueAt
          )
    ) AS soon;

    SELECT @next_expiry = MIN(LockExpiresAt)
    FROM reltask.Jobs WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE LockedBy IS NOT NULL;

    IF EXISTS (
        SELECT 1
        FROM reltask.Marks WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE At <= @now
    )
        SET @marked = 1;

    SELECT header.now, header.next_due, header.next_expiry, header.marked, claimed.Id AS id,
           claimed.Fence AS fence, claimed.JobName AS task, claimed.JobKey AS [key],
           claimed.Args AS args, claimed.Queue AS queue, claimed.Priority AS priority,
           claimed.Schedule AS schedule, claimed.SlotNo AS slot_no,
           claimed.NextRunTime AS next_run_time, claimed.DueAt AS due_at,
           claimed.SlotStartedAt AS slot_started_at, claimed.LockedAt AS locked_at,
           claimed.Attempt AS attempt, claimed.MaxAttempts AS max_attempts,
           claimed.ClaimTimeoutMs AS claim_timeout_ms, claimed.Isolated AS isolated,
           claimed.Steps AS steps, claimed.HasParent AS has_parent,
           claimed.Progress AS progress, claimed.Headers AS headers
    FROM (
        SELECT @now AS now, @next_due AS next_due, @next_expiry AS next_expiry, @marked AS marked
    ) AS header
    LEFT JOIN @claimed AS claimed ON 1 = 1
    ORDER BY claimed.Priority, claimed.DueAt, claimed.Id;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
