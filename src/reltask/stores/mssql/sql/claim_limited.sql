-- Purpose       Claim up to :limit due jobs that have limits, and say when to ask again.
-- Precondition  As for claim_jobs.sql; and each of the job's keys has a free place, and a token if
--               it has a rate. A function that resumes needs no token.
-- Lock order    Marks, which are skipped if they are locked; then the keys in order, which are
--               waited for; then the jobs, which are skipped if they are locked. Only this batch
--               and the maintenance lock keys, each in a transaction of its own.
-- Returns       As claim_jobs.sql. marked says that marks are left that only other workers may
--               take.
-- See           SQL.md: nullable now, skip locked, filtered index, T-SQL batch, duration in
--               minutes, JSON batch, limit.
--
-- The jobs are read before the keys are locked, to know which keys they need, and again afterwards:
-- then what is read is true until the commit, and jobs are taken one by one, the first one first.
-- The first read locks them as well, before the keys. That is no circle: no session that has a key
-- waits for a job.
--
-- A job that has several keys waits at one of them (LimitKey). If another one has no room, it goes
-- to wait there, where the end that makes room finds it.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @given datetime2(6) = :now;
DECLARE @now datetime2(6) = COALESCE(@given, SYSUTCDATETIME()),
        @worker nvarchar(256) = :worker,
        @token uniqueidentifier = :token,
        @queues nvarchar(max) = :queues,
        @tasks nvarchar(max) = :tasks,
        @limit int = :limit,
        @lock_timeout_ms bigint = :lock_timeout_ms,
        @isolated bit = :isolated,
        @oldest int = :oldest;
DECLARE @longest_ms bigint = 3155760000000,
        @limited_at datetime2(6),
        @marked bit = 0,
        @committed bit = 0,
        @room int = @limit,
        @turn int = 0,
        @step int = 0,
        @added int = 1,
        @nth int = 0,
        @last nvarchar(200) = N'',
        @key nvarchar(200),
        @id uniqueidentifier,
        @row_no bigint,
        @gate nvarchar(200),
        @resumes bit,
        @block nvarchar(200);
DECLARE @known_queues TABLE (Name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @known_tasks TABLE (Name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @mark_lanes TABLE (
    Queue nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Task  nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL
);
DECLARE @picked TABLE ([Key] nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY);
DECLARE @taken TABLE (
    [Key] nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Freed int NOT NULL
);
DECLARE @keys TABLE (
    [Key]     nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY,
    IsWanted  bit   NOT NULL,
    Name      nvarchar(100) COLLATE Latin1_General_100_BIN2 NULL,
    TokenMs   float NULL,                                   -- for one token; NULL: no rate
    Freed     int   NOT NULL,
    Room      int   NOT NULL,
    Tokens    float NOT NULL,
    HasQueue  bit   NOT NULL,
    Places    int   NOT NULL,
    IsTouched bit   NOT NULL
);
DECLARE @lanes TABLE (
    Turn      int           NOT NULL,
    Step      int           NOT NULL,
    [Key]     nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
    LimitLane nvarchar(394) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Isolated  bit           NOT NULL,
    Suspended bit           NOT NULL,
    Queue     nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    JobName   nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    IsDue     bit           NOT NULL,
    IsKnown   bit           NOT NULL,
    IsMine    bit           NOT NULL,
    Most      int           NOT NULL
);
DECLARE @heads TABLE (
    Turn      int              NOT NULL,
    Nth       int              NOT NULL,
    Id        uniqueidentifier NOT NULL,
    RowNo     bigint           NOT NULL,
    [Key]     nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
    LimitLane nvarchar(394) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Isolated  bit              NOT NULL,
    Suspended bit              NOT NULL,
    Limits    nvarchar(2000)   NULL,
    IsGone    bit              NOT NULL
);
DECLARE @pairs TABLE (
    Id    uniqueidentifier NOT NULL,
    Nth   int              NOT NULL,
    [Key] nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL
);
DECLARE @chosen TABLE (RowNo bigint NOT NULL PRIMARY KEY);
DECLARE @again TABLE (
    Queue nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Task  nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    At    datetime2(6)  NOT NULL,
    [Key] nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Mine  bit           NOT NULL
);
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
    Headers        nvarchar(max)    NULL,
    Cancelled      bit              NOT NULL
);

BEGIN TRY
    INSERT INTO @known_queues (Name)
    SELECT DISTINCT CAST(value AS nvarchar(128)) COLLATE Latin1_General_100_BIN2
    FROM OPENJSON(@queues)
    WHERE NOT EXISTS (
        SELECT 1
        FROM reltask.Pauses WITH (READCOMMITTEDLOCK)
        WHERE Kind = N'queue' AND Name = value COLLATE Latin1_General_100_BIN2
    );

    INSERT INTO @known_tasks (Name)
    SELECT DISTINCT CAST(value AS nvarchar(256)) COLLATE Latin1_General_100_BIN2
    FROM OPENJSON(@tasks)
    WHERE NOT EXISTS (
        SELECT 1
        FROM reltask.Pauses WITH (READCOMMITTEDLOCK)
        WHERE Kind = N'task' AND Name = value COLLATE Latin1_General_100_BIN2
    );

    -- Marks without a queue are for all workers: places or tokens became free.
    INSERT INTO @mark_lanes (Queue, Task)
    SELECT lane.Queue, lane.Task
    FROM (
        SELECT CAST(N'' AS nvarchar(128)) COLLATE Latin1_General_100_BIN2 AS Queue,
               CAST(N'limit' AS nvarchar(256)) COLLATE Latin1_General_100_BIN2 AS Task
        UNION ALL
        SELECT queue.Name, task.Name
        FROM @known_queues AS queue
        CROSS JOIN @known_tasks AS task
    ) AS lane
    WHERE EXISTS (
        SELECT 1
        FROM reltask.Marks AS mark
            WITH (INDEX (PK_Marks), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE mark.Queue = lane.Queue AND mark.Task = lane.Task
    );

    IF @limit > 0 AND EXISTS (
        SELECT 1
        FROM @mark_lanes AS lane
        JOIN reltask.Marks AS mark
            WITH (INDEX (PK_Marks), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
            ON mark.Queue = lane.Queue AND mark.Task = lane.Task
        WHERE mark.At <= @now
    )
    BEGIN
        BEGIN TRANSACTION;

        INSERT INTO @picked ([Key])
        SELECT DISTINCT mark.Name
        FROM @mark_lanes AS lane
        CROSS APPLY (
            SELECT TOP (2 * @limit + 10) mark.Name
            FROM reltask.Marks AS mark
                WITH (INDEX (PK_Marks), FORCESEEK, READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
            WHERE mark.Queue = lane.Queue AND mark.Task = lane.Task AND mark.At <= @now
            ORDER BY mark.At, mark.Seq
        ) AS mark;

        -- All marks of these keys at once.
        DELETE mark
        OUTPUT deleted.Name, deleted.Freed INTO @taken ([Key], Freed)
        FROM @picked AS picked
        CROSS JOIN @mark_lanes AS lane
        JOIN reltask.Marks AS mark
            WITH (INDEX (IX_Marks_Keys), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
            ON mark.Name = picked.[Key] AND mark.Queue = lane.Queue AND mark.Task = lane.Task
        WHERE mark.Kind = N'limit' AND mark.At <= @now
        OPTION (LOOP JOIN, FORCE ORDER);

        INSERT INTO @keys
        SELECT [Key], 1, NULL, NULL, SUM(Freed), 0, 0, 0, 0, 1
        FROM @taken
        GROUP BY [Key];

        -- Turn 0 finds out which keys the jobs need. They are locked, and turn 1 decides.
        WHILE @turn < 2
        BEGIN
            IF @turn = 1
            BEGIN
                WHILE 1 = 1
                BEGIN
                    SET @key = NULL;
                    SELECT TOP (1) @key = [Key]
                    FROM @keys
                    WHERE [Key] > @last COLLATE Latin1_General_100_BIN2
                    ORDER BY [Key];
                    IF @key IS NULL BREAK;
                    SET @last = @key;

                    UPDATE reltask.LimitKeys WITH (ROWLOCK)
                    SET Seq = Seq + 1
                    WHERE [Key] = @key;
                    IF @@ROWCOUNT = 0
                        INSERT INTO reltask.LimitKeys WITH (ROWLOCK) (
                            [Key], Name, Running, Tokens, RefilledAt
                        )
                        SELECT @key, limit_.Name, 0, COALESCE(limit_.Burst, 0), @now
                        FROM reltask.Limits AS limit_
                        WHERE limit_.Name = LEFT(@key, CHARINDEX(N':', @key + N':') - 1)
                          AND NOT EXISTS (
                              SELECT 1
                              FROM reltask.LimitKeys
                                  WITH (INDEX (PK_LimitKeys), FORCESEEK, UPDLOCK, HOLDLOCK, ROWLOCK)
                              WHERE [Key] = @key
                          );
                END;
                -- The time before the locks may be older than the last count of a key: time that
                -- has been counted would be counted again.
                SET @now = COALESCE(@given, SYSUTCDATETIME());
            END;

            -- What there is; a key that is not counted yet has all of its limit.
            UPDATE own_key
            SET Name = limit_.Name,
                TokenMs = CASE WHEN limit_.RateCount IS NOT NULL
                               THEN CAST(limit_.RatePeriodMs AS float) / limit_.RateCount END,
                Room = CASE WHEN limit_.Name IS NULL THEN 0
                            ELSE COALESCE(limit_.Running, 1000000) - COALESCE(counter.Running, 0)
                                + own_key.Freed END,
                Tokens = CASE
                    WHEN limit_.RateCount IS NULL THEN 1000000
                    WHEN counter.[Key] IS NULL THEN limit_.Burst
                    WHEN counter.Tokens + CASE
                        WHEN counter.RefilledAt >= @now THEN 0
                        ELSE DATEDIFF_BIG(MICROSECOND, counter.RefilledAt, @now) / 1000.0
                            * limit_.RateCount / limit_.RatePeriodMs
                    END > limit_.Burst THEN limit_.Burst
                    ELSE counter.Tokens + CASE
                        WHEN counter.RefilledAt >= @now THEN 0
                        ELSE CAST(DATEDIFF_BIG(MICROSECOND, counter.RefilledAt, @now) AS float)
                            / 1000.0 * limit_.RateCount / limit_.RatePeriodMs
                    END
                END,
                HasQueue = CASE WHEN own_key.IsWanted = 0 AND EXISTS (
                    SELECT 1
                    FROM reltask.Jobs AS job
                        WITH (
                            INDEX (IX_Jobs_Limited), FORCESEEK, READPAST, ROWLOCK,
                            READCOMMITTEDLOCK
                        )
                    WHERE job.LimitKey = own_key.[Key]
                      AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
                      AND job.LimitKey IS NOT NULL
                ) THEN 1 ELSE 0 END
            FROM @keys AS own_key
            LEFT JOIN reltask.LimitKeys AS counter WITH (INDEX (PK_LimitKeys), FORCESEEK)
                ON counter.[Key] = own_key.[Key]
            LEFT JOIN reltask.Limits AS limit_
                ON limit_.Name = LEFT(own_key.[Key], CHARINDEX(N':', own_key.[Key] + N':') - 1)
            OPTION (LOOP JOIN, FORCE ORDER);

            -- The lanes of jobs at these keys: from one to the next with one seek each.
            SELECT @step = 0, @added = 1;
            WHILE @added > 0
            BEGIN
                INSERT INTO @lanes
                SELECT @turn, @step, lane.[Key], head.LimitLane, head.Isolated, head.Suspended,
                       head.Queue, head.JobName,
                       CASE WHEN head.DueAt <= @now THEN 1 ELSE 0 END,
                       known.IsKnown,
                       CASE WHEN known.IsKnown = 1 AND (head.Isolated = 0 OR @isolated = 1)
                            THEN 1 ELSE 0 END,
                       CASE WHEN head.Isolated = 1
                            THEN CASE WHEN head.Suspended = 1 OR lane.Tokens >= 1
                                      THEN 1 ELSE 0 END
                            WHEN head.Suspended = 1 OR lane.Tokens >= lane.Room
                            THEN CASE WHEN lane.Room < @limit THEN lane.Room ELSE @limit END
                            ELSE CASE WHEN lane.Tokens < @limit
                                      THEN CAST(FLOOR(lane.Tokens) AS int) ELSE @limit END
                       END
                FROM (
                    SELECT own_key.[Key], own_key.Room, own_key.Tokens, N'' AS LimitLane
                    FROM @keys AS own_key
                    WHERE @step = 0 AND own_key.IsWanted = 1 AND own_key.Room > 0
                    UNION ALL
                    SELECT own_key.[Key], own_key.Room, own_key.Tokens, before.LimitLane
                    FROM @lanes AS before
                    JOIN @keys AS own_key ON own_key.[Key] = before.[Key]
                    WHERE before.Turn = @turn AND before.Step = @step - 1
                ) AS lane
                CROSS APPLY (
                    SELECT TOP (1) job.LimitLane, job.Isolated, job.Suspended, job.Queue,
                           job.JobName, job.DueAt
                    FROM reltask.Jobs AS job
                        WITH (
                            INDEX (IX_Jobs_Limited), FORCESEEK, READPAST, ROWLOCK,
                            READCOMMITTEDLOCK
                        )
                    WHERE job.LimitKey = lane.[Key] AND job.LimitLane > lane.LimitLane
                      AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
                      AND job.LimitKey IS NOT NULL
                    ORDER BY job.LimitLane, job.DueAt
                ) AS head
                CROSS APPLY (
                    SELECT CASE WHEN EXISTS (
                               SELECT 1 FROM @known_queues AS queue WHERE queue.Name = head.Queue
                           ) AND EXISTS (
                               SELECT 1 FROM @known_tasks AS task WHERE task.Name = head.JobName
                           ) THEN 1 ELSE 0 END AS IsKnown
                ) AS known;
                SELECT @added = @@ROWCOUNT, @step = @step + 1;
            END;

            -- The first @oldest places go to the jobs that have waited longest.
            INSERT INTO @heads
            SELECT @turn,
                   ROW_NUMBER() OVER (
                       ORDER BY CASE WHEN found.Age <= @oldest THEN -1 ELSE found.Priority END,
                                found.DueAt, found.Id
                   ),
                   found.Id, found.RowNo, found.[Key], found.LimitLane, found.Isolated,
                   found.Suspended, found.Limits, 0
            FROM (
                SELECT lane.[Key], lane.LimitLane, lane.Isolated, lane.Suspended,
                       job.Id, job.RowNo, job.Priority, job.DueAt, job.Limits,
                       ROW_NUMBER() OVER (ORDER BY job.DueAt, job.Id) AS Age
                FROM @lanes AS lane
                CROSS APPLY (
                    SELECT TOP (lane.Most) job.Id, job.RowNo, job.Priority, job.DueAt, job.Limits
                    FROM reltask.Jobs AS job
                        WITH (
                            INDEX (IX_Jobs_Limited), FORCESEEK, READPAST, UPDLOCK, ROWLOCK,
                            READCOMMITTEDLOCK
                        )
                    WHERE job.LimitKey = lane.[Key] AND job.LimitLane = lane.LimitLane
                      AND job.DueAt <= @now
                      AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
                      AND job.LimitKey IS NOT NULL
                    ORDER BY job.DueAt
                ) AS job
                WHERE lane.Turn = @turn AND lane.IsMine = 1 AND lane.IsDue = 1 AND lane.Most > 0
            ) AS found;

            DELETE FROM @pairs;
            INSERT INTO @pairs (Id, Nth, [Key])
            SELECT head.Id, 0, head.[Key]
            FROM @heads AS head
            WHERE head.Turn = @turn AND head.Limits IS NULL
            UNION ALL
            SELECT head.Id, CAST(wanted.[key] AS int),
                   CAST(wanted.value AS nvarchar(200)) COLLATE Latin1_General_100_BIN2
            FROM @heads AS head
            CROSS APPLY OPENJSON(head.Limits) AS wanted
            WHERE head.Turn = @turn AND head.Limits IS NOT NULL;

            IF @turn = 0
                INSERT INTO @keys
                SELECT DISTINCT pair.[Key], 0, NULL, NULL, 0, 0, 0, 0, 0, 0
                FROM @pairs AS pair
                WHERE NOT EXISTS (SELECT 1 FROM @keys AS own_key WHERE own_key.[Key] = pair.[Key]);
            SET @turn = @turn + 1;
        END;

        WHILE @room > 0
        BEGIN
            SET @id = NULL;
            SELECT TOP (1) @id = Id, @row_no = RowNo, @nth = Nth, @gate = [Key],
                   @resumes = Suspended
            FROM @heads
            WHERE Turn = 1 AND Nth > @nth AND (Isolated = 0 OR @isolated = 1)
            ORDER BY Nth;
            IF @id IS NULL BREAK;

            -- A key that is not locked, because the job came after turn 0: it waits for the next
            -- look.
            IF EXISTS (
                SELECT 1
                FROM @pairs AS pair
                WHERE pair.Id = @id
                  AND NOT EXISTS (SELECT 1 FROM @keys AS own_key WHERE own_key.[Key] = pair.[Key])
            )
                CONTINUE;

            SET @block = NULL;
            SELECT TOP (1) @block = own_key.[Key]
            FROM @pairs AS pair
            JOIN @keys AS own_key ON own_key.[Key] = pair.[Key]
            WHERE pair.Id = @id
              AND (
                  own_key.Room <= 0 OR (@resumes = 0 AND own_key.Tokens < 1)
                  OR (
                      own_key.HasQueue = 1 AND pair.Nth > (
                          SELECT MIN(own.Nth) FROM @pairs AS own
                          WHERE own.Id = @id AND own.[Key] = @gate
                      )
                  )
              )
            ORDER BY CASE WHEN own_key.Room <= 0 THEN 0 ELSE 1 END, pair.Nth;

            IF @block IS NULL
            BEGIN
                INSERT INTO @chosen (RowNo) VALUES (@row_no);
                UPDATE @heads SET IsGone = 1 WHERE Turn = 1 AND Nth = @nth;
                UPDATE own_key
                SET Room = Room - 1,
                    Tokens = Tokens - CASE WHEN @resumes = 1 OR TokenMs IS NULL THEN 0 ELSE 1 END,
                    Places = Places + 1,
                    IsTouched = 1
                FROM @keys AS own_key
                WHERE own_key.[Key] IN (SELECT pair.[Key] FROM @pairs AS pair WHERE pair.Id = @id);
                SET @room = @room - 1;
                IF EXISTS (SELECT 1 FROM @heads WHERE Turn = 1 AND Nth = @nth AND Isolated = 1)
                    SET @isolated = 0;  -- one is enough
            END
            ELSE IF @block <> @gate
            BEGIN
                UPDATE job
                SET LimitKey = @block
                FROM reltask.Jobs AS job WITH (INDEX (UQ_Jobs_RowNo), UPDLOCK, ROWLOCK)
                WHERE job.RowNo = @row_no AND job.LockedBy IS NULL;
                UPDATE @heads SET IsGone = 1 WHERE Turn = 1 AND Nth = @nth;
                UPDATE @keys SET IsTouched = 1 WHERE [Key] = @block;
                INSERT INTO @again (Queue, Task, At, [Key], Mine)
                SELECT N'', N'limit',
                       CASE WHEN Tokens >= 1 OR @resumes = 1 THEN @now
                            ELSE DATEADD(
                                MILLISECOND,
                                CAST(CEILING((1 - Tokens) * TokenMs) AS bigint) % 60000,
                                DATEADD(
                                    MINUTE,
                                    CAST(CEILING((1 - Tokens) * TokenMs) AS bigint) / 60000, @now
                                )
                            ) END,
                       [Key], 1
                FROM @keys
                WHERE [Key] = @block AND Room > 0;
            END;
        END;

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
        FROM @chosen AS chosen
        JOIN reltask.Jobs AS job WITH (INDEX (UQ_Jobs_RowNo), UPDLOCK, ROWLOCK)
            ON job.RowNo = chosen.RowNo
        WHERE job.LockedBy IS NULL
        OPTION (LOOP JOIN, FORCE ORDER);

        IF @@ROWCOUNT <> (SELECT COUNT(*) FROM @chosen)
            THROW 51222, N'a row was out of reach; everything is rolled back', 1;

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
               CASE WHEN job.ParentId IS NULL THEN 0 ELSE 1 END, job.Progress, job.Headers,
               CASE WHEN job.CancelSlot = job.SlotNo THEN 1 ELSE 0 END
        FROM @chosen AS chosen
        JOIN reltask.Jobs AS job WITH (INDEX (UQ_Jobs_RowNo), ROWLOCK)
            ON job.RowNo = chosen.RowNo
        OPTION (LOOP JOIN, FORCE ORDER);

        UPDATE counter
        SET Running = counter.Running - own_key.Freed + own_key.Places,
            Tokens = CASE WHEN own_key.TokenMs IS NULL THEN counter.Tokens ELSE own_key.Tokens END,
            RefilledAt = @now
        FROM @keys AS own_key
        JOIN reltask.LimitKeys AS counter WITH (INDEX (PK_LimitKeys), UPDLOCK, ROWLOCK)
            ON counter.[Key] = own_key.[Key]
        WHERE own_key.IsTouched = 1
        OPTION (LOOP JOIN, FORCE ORDER);

        -- Keys with room and jobs that are left: for this worker when there is a token, for others
        -- by a mark of their own, unless they have one that is not for a job that is due later.
        INSERT INTO @again (Queue, Task, At, [Key], Mine)
        SELECT CASE WHEN lane.IsMine = 1 THEN N'' ELSE lane.Queue END,
               CASE WHEN lane.IsMine = 1 THEN N'limit' ELSE lane.JobName END,
               MIN(look.At),
               lane.[Key],
               MAX(CASE WHEN lane.IsKnown = 1 THEN 1 ELSE 0 END)
        FROM @lanes AS lane
        JOIN @keys AS own_key ON own_key.[Key] = lane.[Key]
        CROSS APPLY (
            SELECT CASE WHEN lane.IsMine = 0 AND lane.IsKnown = 1 THEN DATEADD(SECOND, 1, @now)
                        WHEN own_key.Tokens >= 1 OR (lane.Suspended = 1 AND lane.IsMine = 1)
                        THEN @now
                        ELSE DATEADD(
                            MILLISECOND, CAST(
                                CEILING((1 - own_key.Tokens) * own_key.TokenMs) AS bigint
                            ) % 60000,
                            DATEADD(
                                MINUTE, CAST(
                                    CEILING((1 - own_key.Tokens) * own_key.TokenMs) AS bigint
                                ) / 60000, @now
                            )
                        ) END AS At
        ) AS look
        CROSS APPLY (
            SELECT COUNT(*) AS Jobs, SUM(CAST(head.IsGone AS int)) AS Gone
            FROM @heads AS head
            WHERE head.Turn = 1 AND head.[Key] = lane.[Key] AND head.LimitLane = lane.LimitLane
        ) AS seen
        WHERE lane.Turn = 1 AND lane.IsDue = 1 AND own_key.Room > 0
          AND (lane.IsMine = 0 OR COALESCE(seen.Gone, 0) < seen.Jobs OR seen.Jobs >= lane.Most)
          AND (
              lane.IsMine = 1 OR NOT EXISTS (
                  SELECT 1
                  FROM reltask.Marks AS mark
                      WITH (
                          INDEX (IX_Marks_Keys), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK
                      )
                  WHERE mark.Name = lane.[Key] AND mark.Kind = N'limit'
                    AND mark.Queue = lane.Queue AND mark.Task = lane.JobName
                    AND mark.At <= DATEADD(SECOND, 1, look.At)
              )
          )
        GROUP BY CASE WHEN lane.IsMine = 1 THEN N'' ELSE lane.Queue END,
                 CASE WHEN lane.IsMine = 1 THEN N'limit' ELSE lane.JobName END, lane.[Key];

        INSERT INTO reltask.Marks WITH (ROWLOCK) (Queue, Task, At, Kind, Name)
        SELECT DISTINCT Queue, Task, At, N'limit', [Key]
        FROM @again;

        IF EXISTS (SELECT 1 FROM @again WHERE Mine = 0) SET @marked = 1;
        COMMIT TRANSACTION;
        SET @committed = 1;
    END;

    SELECT @limited_at = MIN(first.At)
    FROM (
        SELECT Queue, Task FROM @mark_lanes
        UNION
        SELECT Queue, Task FROM @again WHERE Mine = 1
    ) AS lane
    CROSS APPLY (
        SELECT TOP (1) mark.At
        FROM reltask.Marks AS mark
            WITH (INDEX (PK_Marks), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE mark.Queue = lane.Queue AND mark.Task = lane.Task
        ORDER BY mark.At
    ) AS first;

    SELECT header.now, header.next_due, header.next_expiry, header.marked, header.limited_at,
           CAST(NULL AS int) AS fleet_rank, CAST(NULL AS int) AS fleet_size,
           CAST(NULL AS int) AS fleet_idle,
           claimed.Id AS id, claimed.Fence AS fence, claimed.JobName AS task,
           claimed.JobKey AS [key], claimed.Args AS args, claimed.Queue AS queue,
           claimed.Priority AS priority, claimed.Schedule AS schedule, claimed.SlotNo AS slot_no,
           claimed.NextRunTime AS next_run_time, claimed.DueAt AS due_at,
           claimed.SlotStartedAt AS slot_started_at, claimed.LockedAt AS locked_at,
           claimed.Attempt AS attempt, claimed.MaxAttempts AS max_attempts,
           claimed.ClaimTimeoutMs AS claim_timeout_ms, claimed.Isolated AS isolated,
           claimed.Steps AS steps, claimed.HasParent AS has_parent,
           claimed.Progress AS progress, claimed.Headers AS headers,
           claimed.Cancelled AS cancelled
    FROM (
        SELECT @now AS now, CAST(NULL AS datetime2(6)) AS next_due,
               CAST(NULL AS datetime2(6)) AS next_expiry, @marked AS marked,
               @limited_at AS limited_at
    ) AS header
    LEFT JOIN @claimed AS claimed ON 1 = 1
    ORDER BY claimed.Priority, claimed.DueAt, claimed.Id;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message,
           @committed AS committed;
END CATCH;
