-- Purpose       End slots: write the ledger, tell the steps that wait for a child, remove one-offs,
--               move recurring jobs to their next slot.
-- Precondition  Each job's row still has this id, owner and fence. A row that does not match is not
--               written, and is missing from the result.
-- Lock order    Rows by id; then ends of children, then marks, which are only inserted. The first
--               UPDATE skips locked rows, so a settlement does not wait for them. A row missing
--               from the result is therefore suspect, not lost; read_holds.sql decides.
-- Returns       One row per accepted completion: id, fence, and dead, which is always false.
-- See           SQL.md: nullable now, fence, lock order by id, skip locked, lock first, T-SQL
--               batch, JSON batch, mark.
--
-- A skipped slot also gets a ledger row, with the next slot number and the next fence; the job's
-- row advances by the same number. The unique index UX_Runs_SlotEndsOnce refuses a second end of
-- any slot.
--
-- A child that ends leaves its end, and a mark, for the step that waits for it. Its parent's row is
-- not touched.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @worker nvarchar(256) = :worker,
        @completions nvarchar(max) = :completions;
DECLARE @locked int,
        @settled int;
DECLARE @given TABLE (
    Id           uniqueidentifier NOT NULL,
    Fence        bigint           NOT NULL,
    Outcome      nvarchar(16)     NOT NULL,
    Result       nvarchar(max)    NULL,
    Error        nvarchar(max)    NULL,
    NextRunTime  datetime2(6)     NULL,
    Args         nvarchar(max)    NULL,
    Skipped      nvarchar(max)    NULL,
    SkippedCount int              NOT NULL,
    Keeps        bit              NOT NULL,
    PRIMARY KEY (Id, Fence)
);
DECLARE @held TABLE (
    Id         uniqueidentifier NOT NULL PRIMARY KEY,
    Fence      bigint           NOT NULL,
    ParentId   uniqueidentifier NULL,
    ParentSlot bigint           NULL,
    ParentStep nvarchar(420) COLLATE Latin1_General_100_BIN2 NULL,
    ParentNth  int              NULL
);
DECLARE @ended TABLE (
    JobId  uniqueidentifier NOT NULL,
    SlotNo bigint           NOT NULL,
    Name   nvarchar(420)    NOT NULL
);

BEGIN TRY
    INSERT INTO @given (
        Id, Fence, Outcome, Result, Error, NextRunTime, Args, Skipped, SkippedCount, Keeps
    )
    SELECT one.id, one.fence, one.outcome, one.result, one.error, one.next_run_time, one.args,
           one.skipped, one.skipped_count, one.keeps
    FROM OPENJSON(@completions) WITH (
        id            uniqueidentifier '$.id',
        fence         bigint           '$.fence',
        outcome       nvarchar(16)     '$.outcome',
        result        nvarchar(max)    '$.result',
        error         nvarchar(max)    '$.error',
        next_run_time datetime2(6)     '$.next_run_time',
        args          nvarchar(max)    '$.args',
        skipped       nvarchar(max)    '$.skipped' AS JSON,
        skipped_count int              '$.skipped_count',
        keeps         bit              '$.keeps'
    ) AS one;

    BEGIN TRANSACTION;

    UPDATE job
    SET ClaimToken = NULL
    FROM @given AS given
    JOIN reltask.Jobs AS job
        WITH (INDEX (PK_Jobs), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
        ON job.Id = given.Id AND job.Fence = given.Fence
    WHERE job.LockedBy = @worker
    OPTION (LOOP JOIN, FORCE ORDER);
    SET @locked = @@ROWCOUNT;

    INSERT INTO @held (Id, Fence, ParentId, ParentSlot, ParentStep, ParentNth)
    SELECT job.Id, job.Fence, job.ParentId, job.ParentSlot, job.ParentStep, job.ParentNth
    FROM @given AS given
    JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), READPAST, ROWLOCK, READCOMMITTEDLOCK)
        ON job.Id = given.Id AND job.Fence = given.Fence
    WHERE job.LockedBy = @worker
    OPTION (LOOP JOIN, FORCE ORDER);

    -- A row that was locked before and is free now is not ours to write.
    IF @@ROWCOUNT <> @locked
        THROW 51222, N'a row was out of reach; everything is rolled back', 1;

    INSERT INTO reltask.Runs WITH (ROWLOCK) (
        JobId, Fence, SlotNo, JobName, JobKey, Queue, Worker, Attempt,
        NominalTime, DueAt, ClaimedAt, FinishedAt, Outcome, Error, Result, Steps, EndsJob,
        Priority, Args, Headers
    )
    SELECT job.Id, job.Fence, job.SlotNo, job.JobName, job.JobKey, job.Queue, @worker, job.Attempt,
           job.NextRunTime, job.DueAt, job.LockedAt, @now, given.Outcome, given.Error, given.Result,
           NULLIF(job.Steps, 0),
           CASE WHEN given.NextRunTime IS NULL THEN 1 ELSE 0 END,
           CASE WHEN given.NextRunTime IS NULL THEN job.Priority END,
           CASE WHEN given.NextRunTime IS NULL AND given.Keeps = 1 THEN job.Args END,
           CASE WHEN given.NextRunTime IS NULL AND given.Keeps = 1 THEN job.Headers END
    FROM @held AS held
    JOIN @given AS given ON given.Id = held.Id AND given.Fence = held.Fence
    JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), READPAST, ROWLOCK, READCOMMITTEDLOCK)
        ON job.Id = held.Id
    OPTION (LOOP JOIN, FORCE ORDER);

    INSERT INTO reltask.Runs WITH (ROWLOCK) (
        JobId, Fence, SlotNo, JobName, JobKey, Queue, Worker, Attempt,
        NominalTime, DueAt, ClaimedAt, FinishedAt, Outcome
    )
    SELECT job.Id, job.Fence + 1 + passed.Nth, job.SlotNo + 1 + passed.Nth, job.JobName, job.JobKey,
           job.Queue, NULL, 0, passed.NominalTime, passed.NominalTime, NULL, @now, N'skipped'
    FROM @held AS held
    JOIN @given AS given
        ON given.Id = held.Id AND given.Fence = held.Fence AND given.SkippedCount > 0
    JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), READPAST, ROWLOCK, READCOMMITTEDLOCK)
        ON job.Id = held.Id
    CROSS APPLY (
        SELECT CAST([key] AS int) AS Nth,
               CAST(value AS datetime2(6)) AS NominalTime FROM OPENJSON(given.Skipped)
    ) AS passed
    OPTION (LOOP JOIN, FORCE ORDER);

    IF EXISTS (SELECT 1 FROM @held WHERE ParentId IS NOT NULL)
    BEGIN
        INSERT INTO reltask.ChildEnds WITH (ROWLOCK) (
            ParentId, SlotNo, Step, Nth, JobId, Outcome, Value, Error, EndedAt
        )
        OUTPUT inserted.ParentId, inserted.SlotNo, inserted.Step INTO @ended (JobId, SlotNo, Name)
        SELECT held.ParentId, held.ParentSlot, held.ParentStep, held.ParentNth, held.Id,
               CASE WHEN given.Outcome = N'skipped' THEN N'cancelled' ELSE given.Outcome END,
               given.Result, given.Error, @now
        FROM @held AS held
        JOIN @given AS given ON given.Id = held.Id AND given.Fence = held.Fence
        WHERE given.NextRunTime IS NULL AND held.ParentId IS NOT NULL
          AND NOT EXISTS (
              SELECT 1
              FROM reltask.ChildEnds AS known WITH (INDEX (PK_ChildEnds))
              WHERE known.ParentId = held.ParentId AND known.SlotNo = held.ParentSlot
                AND known.Step = held.ParentStep AND known.Nth = held.ParentNth
          )
        OPTION (LOOP JOIN, FORCE ORDER);

        INSERT INTO reltask.Marks WITH (ROWLOCK) (At, Kind, JobId, SlotNo, Name)
        SELECT @now, N'child', JobId, SlotNo, Name
        FROM @ended;
    END;

    DELETE job
    FROM @held AS held
    JOIN @given AS given
        ON given.Id = held.Id AND given.Fence = held.Fence AND given.NextRunTime IS NULL
    JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
        ON job.Id = held.Id AND job.Fence = held.Fence
    WHERE job.LockedBy = @worker
    OPTION (LOOP JOIN, FORCE ORDER);
    SET @settled = @@ROWCOUNT;

    -- The next run time is strictly later than the last, whatever the clocks did.
    UPDATE job
    SET SlotNo = job.SlotNo + 1 + given.SkippedCount,
        Fence = job.Fence + given.SkippedCount,
        NextRunTime = CASE WHEN given.NextRunTime > job.NextRunTime THEN given.NextRunTime
                           ELSE DATEADD(MICROSECOND, 1, job.NextRunTime) END,
        NotBefore = NULL,
        Args = COALESCE(given.Args, job.Args),
        Steps = 0,
        Suspended = 0,
        -- A cancelled one-off that goes on with Again is still cancelled, a recurring job not.
        CancelSlot = CASE WHEN job.Recurring = 0 AND job.CancelSlot = job.SlotNo
                          THEN job.SlotNo + 1 + given.SkippedCount END,
        Attempt = 0,
        SlotStartedAt = NULL,
        LastRunTime = @now,
        Losses = 0,
        Isolated = 0,
        LockedBy = NULL,
        LockedAt = NULL,
        HeartbeatAt = NULL,
        ClaimTimeoutMs = NULL,
        LockExpiresAt = NULL,
        ClaimToken = NULL,
        Progress = NULL
    FROM @held AS held
    JOIN @given AS given
        ON given.Id = held.Id AND given.Fence = held.Fence AND given.NextRunTime IS NOT NULL
    JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
        ON job.Id = held.Id AND job.Fence = held.Fence
    WHERE job.LockedBy = @worker
    OPTION (LOOP JOIN, FORCE ORDER);
    SET @settled = @settled + @@ROWCOUNT;

    IF @settled <> @locked
        THROW 51222, N'a row was out of reach; everything is rolled back', 1;

    COMMIT TRANSACTION;

    SELECT Id AS id, Fence AS fence, CAST(0 AS bit) AS dead FROM @held;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
