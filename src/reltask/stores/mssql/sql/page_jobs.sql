-- Purpose       One page of the jobs in one state: due, later, suspended, claimed, paused or dead.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per job, in the order of the page; at is the time that it is ordered by.
-- Parameters    :after_at and :after_id are those of the last row of the page before, or null.
-- See           SQL.md: nullable now, T-SQL batch, filtered index.
--
-- Lanes are walked as in read_overview.sql, and each gives one page at most. The page is chosen
-- first, by the index of its state; then its rows are read.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @state nvarchar(16) = :state,
        @task nvarchar(256) = :task,
        @queue nvarchar(128) = :queue,
        @after_at datetime2(6) = :after_at,
        @after_id uniqueidentifier = :after_id,
        @limit int = :limit;
DECLARE @isolated bit = 0,
        @lane_queue nvarchar(128) = N'',
        @lane_task nvarchar(256) = N'',
        @priority smallint = -1,
        @found bit = CASE WHEN @state IN (N'due', N'later') THEN 1 ELSE 0 END,
        @low datetime2(6) = CASE WHEN @state = N'later' THEN DATEADD(MICROSECOND, 1, @now)
                                 ELSE CONVERT(datetime2(6), '0001-01-01', 126) END,
        @high datetime2(6) = CASE WHEN @state = N'later'
                                  THEN CONVERT(datetime2(6), '9999-12-31', 126)
                                  ELSE @now END;
IF @after_at > @low SET @low = @after_at;
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
DECLARE @page TABLE (
    Id uniqueidentifier NOT NULL,
    At datetime2(6)     NOT NULL
);

BEGIN TRY
    -- From the head of one lane to the head of the next: the task's next priority, the next task,
    -- the next queue, and last the isolated jobs. One index seek each.
    WHILE @found = 1
    BEGIN
        SET @found = 0;
        SELECT TOP (1) @found = 1, @priority = Priority
        FROM reltask.Jobs WITH (INDEX (IX_Jobs_Polling))
        WHERE Isolated = @isolated AND Queue = @lane_queue AND JobName = @lane_task
          AND Priority > @priority
          AND LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NULL
        ORDER BY Priority;

        IF @found = 0
            SELECT TOP (1) @found = 1, @lane_task = JobName, @priority = Priority
            FROM reltask.Jobs WITH (INDEX (IX_Jobs_Polling))
            WHERE Isolated = @isolated AND Queue = @lane_queue AND JobName > @lane_task
              AND LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NULL
            ORDER BY JobName, Priority;

        IF @found = 0
            SELECT TOP (1) @found = 1, @lane_queue = Queue, @lane_task = JobName,
                   @priority = Priority
            FROM reltask.Jobs WITH (INDEX (IX_Jobs_Polling))
            WHERE Isolated = @isolated AND Queue > @lane_queue
              AND LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NULL
            ORDER BY Queue, JobName, Priority;

        IF @found = 0 AND @isolated = 0
        BEGIN
            SET @isolated = 1;
            SELECT TOP (1) @found = 1, @lane_queue = Queue, @lane_task = JobName,
                   @priority = Priority
            FROM reltask.Jobs WITH (INDEX (IX_Jobs_Polling))
            WHERE Isolated = 1
              AND LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NULL
            ORDER BY Queue, JobName, Priority;
        END;

        IF @found = 1
            INSERT INTO @lanes (Isolated, Queue, JobName, Priority)
            VALUES (@isolated, @lane_queue, @lane_task, @priority);
    END;

    SET @found = CASE WHEN @state IN (N'due', N'later') THEN 1 ELSE 0 END;
    SET @lane_queue = N'';
    SET @lane_task = N'';

    -- The same for jobs with a limit, which have lanes of their own: one per queue and task.
    WHILE @found = 1
    BEGIN
        SET @found = 0;
        SELECT TOP (1) @found = 1, @lane_task = JobName
        FROM reltask.Jobs WITH (INDEX (IX_Jobs_LimitedDue))
        WHERE Queue = @lane_queue AND JobName > @lane_task
          AND LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NOT NULL
        ORDER BY JobName;

        IF @found = 0
            SELECT TOP (1) @found = 1, @lane_queue = Queue, @lane_task = JobName
            FROM reltask.Jobs WITH (INDEX (IX_Jobs_LimitedDue))
            WHERE Queue > @lane_queue
              AND LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NOT NULL
            ORDER BY Queue, JobName;

        IF @found = 1
            INSERT INTO @limited (Queue, JobName) VALUES (@lane_queue, @lane_task);
    END;

    IF @state IN (N'due', N'later')
    BEGIN
        INSERT INTO @page (Id, At)
        SELECT head.Id, head.DueAt
        FROM @lanes AS lane
        CROSS APPLY (
            SELECT TOP (@limit) one.Id, one.DueAt
            FROM reltask.Jobs AS one WITH (INDEX (IX_Jobs_Polling))
            WHERE one.Isolated = lane.Isolated AND one.Queue = lane.Queue
              AND one.JobName = lane.JobName AND one.Priority = lane.Priority
              AND one.DueAt >= @low AND one.DueAt <= @high
              AND (@after_at IS NULL OR one.DueAt > @after_at OR one.Id > @after_id)
              AND one.LockedBy IS NULL AND one.PausedAt IS NULL AND one.DeadAt IS NULL
              AND one.LimitKey IS NULL
              AND (@state = N'due' OR one.Suspended = 0)
            ORDER BY one.DueAt, one.Id
        ) AS head
        WHERE (@task IS NULL OR lane.JobName = @task) AND (@queue IS NULL OR lane.Queue = @queue);

        INSERT INTO @page (Id, At)
        SELECT head.Id, head.DueAt
        FROM @limited AS lane
        CROSS APPLY (
            SELECT TOP (@limit) one.Id, one.DueAt
            FROM reltask.Jobs AS one WITH (INDEX (IX_Jobs_LimitedDue))
            WHERE one.Queue = lane.Queue AND one.JobName = lane.JobName
              AND one.DueAt >= @low AND one.DueAt <= @high
              AND (@after_at IS NULL OR one.DueAt > @after_at OR one.Id > @after_id)
              AND one.LockedBy IS NULL AND one.PausedAt IS NULL AND one.DeadAt IS NULL
              AND one.LimitKey IS NOT NULL
              AND (@state = N'due' OR one.Suspended = 0)
            ORDER BY one.DueAt, one.Id
        ) AS head
        WHERE (@task IS NULL OR lane.JobName = @task) AND (@queue IS NULL OR lane.Queue = @queue);
    END;

    IF @state = N'suspended'
        INSERT INTO @page (Id, At)
        SELECT TOP (@limit) job.Id, job.DueAt
        FROM reltask.Jobs AS job
        WHERE job.Suspended = 1 AND job.PausedAt IS NULL
          AND (
              @after_at IS NULL OR job.DueAt > @after_at
              OR (job.DueAt = @after_at AND job.Id > @after_id)
          )
          AND (@task IS NULL OR job.JobName = @task) AND (@queue IS NULL OR job.Queue = @queue)
        ORDER BY job.DueAt, job.Id
        OPTION (RECOMPILE);

    IF @state = N'claimed'
        INSERT INTO @page (Id, At)
        SELECT TOP (@limit) job.Id, job.LockedAt
        FROM reltask.Jobs AS job
        WHERE job.LockedBy IS NOT NULL
          AND (
              @after_at IS NULL OR job.LockedAt > @after_at
              OR (job.LockedAt = @after_at AND job.Id > @after_id)
          )
          AND (@task IS NULL OR job.JobName = @task) AND (@queue IS NULL OR job.Queue = @queue)
        ORDER BY job.LockedAt, job.Id
        OPTION (RECOMPILE);

    IF @state = N'paused'
        INSERT INTO @page (Id, At)
        SELECT TOP (@limit) job.Id, job.PausedAt
        FROM reltask.Jobs AS job
        WHERE job.PausedAt IS NOT NULL AND job.DeadAt IS NULL AND job.LockedBy IS NULL
          AND (
              @after_at IS NULL OR job.PausedAt < @after_at
              OR (job.PausedAt = @after_at AND job.Id < @after_id)
          )
          AND (@task IS NULL OR job.JobName = @task) AND (@queue IS NULL OR job.Queue = @queue)
        ORDER BY job.PausedAt DESC, job.Id DESC
        OPTION (RECOMPILE);

    IF @state = N'dead'
        INSERT INTO @page (Id, At)
        SELECT TOP (@limit) job.Id, job.DeadAt
        FROM reltask.Jobs AS job
        WHERE job.DeadAt IS NOT NULL
          AND (
              @after_at IS NULL OR job.DeadAt < @after_at
              OR (job.DeadAt = @after_at AND job.Id < @after_id)
          )
          AND (@task IS NULL OR job.JobName = @task) AND (@queue IS NULL OR job.Queue = @queue)
        ORDER BY job.DeadAt DESC, job.Id DESC
        OPTION (RECOMPILE);

    SELECT TOP (@limit) page.At AS at,
           job.Id AS id, job.JobName AS task, job.JobKey AS [key], job.Queue AS queue,
           job.Priority AS priority,
           CASE WHEN job.DeadAt IS NOT NULL THEN N'dead'
                WHEN job.LockedBy IS NOT NULL THEN N'claimed'
                WHEN job.PausedAt IS NOT NULL THEN N'paused'
                WHEN job.Suspended = 1 THEN N'suspended'
                ELSE N'ready' END AS state,
           CASE WHEN job.Recurring = 0 OR job.Schedule IS NOT NULL THEN job.Schedule
                WHEN job.IntervalMs IS NOT NULL
                THEN CONCAT(N'{"every":"', job.IntervalMs, N'ms"}')
                ELSE CONCAT(N'{"every":"', job.IntervalMinutes, N'm"}') END AS schedule,
           job.SlotNo AS slot_no, job.NextRunTime AS next_run_time, job.DueAt AS due_at,
           job.LastRunTime AS last_run_time, job.Attempt AS attempt,
           job.MaxAttempts AS max_attempts, job.Fence AS fence, job.LockedBy AS locked_by,
           job.LockedAt AS locked_at, job.HeartbeatAt AS heartbeat_at,
           job.LockExpiresAt AS lock_expires_at, job.Progress AS progress,
           job.Isolated AS isolated, job.CreatedAt AS created_at, job.Steps AS steps,
           job.ParentId AS parent_id
    FROM @page AS page
    JOIN reltask.Jobs AS job ON job.Id = page.Id
    ORDER BY CASE WHEN @state IN (N'paused', N'dead') THEN page.At END DESC,
             CASE WHEN @state IN (N'paused', N'dead') THEN page.Id END DESC,
             page.At, page.Id;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
