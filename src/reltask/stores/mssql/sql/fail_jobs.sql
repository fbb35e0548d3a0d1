-- Purpose       Record failed runs: the slot is retried after its delay, or the job is dead. A
--               cancelled job is due at once and not dead, so that the next claim ends it.
-- Precondition  Each job's row still has this id, owner and fence. A row that does not match is not
--               written, and is missing from the result.
-- Lock order    Rows by id; then ends of children, then marks, which are only inserted. The first
--               UPDATE skips locked rows, so a settlement does not wait for them. A row missing
--               from the result is therefore suspect, not lost; read_holds.sql decides.
-- Returns       One row per accepted failure: id, fence, and whether the job is now dead.
-- Parameters    With patient set, a cancelled job waits for its delay as well: it was this run that
--               should have ended it.
-- See           SQL.md: nullable now, fence, lock order by id, skip locked, lock first, T-SQL
--               batch, duration in minutes, JSON batch, mark.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @worker nvarchar(256) = :worker,
        @failures nvarchar(max) = :failures;
DECLARE @locked int;
DECLARE @given TABLE (
    Id       uniqueidentifier NOT NULL,
    Fence    bigint           NOT NULL,
    Error    nvarchar(max)    NULL,
    RetryAt  datetime2(6)     NOT NULL,
    Final    bit              NOT NULL,
    Patient  bit              NOT NULL,
    PRIMARY KEY (Id, Fence)
);
DECLARE @held TABLE (
    Id         uniqueidentifier NOT NULL PRIMARY KEY,
    Fence      bigint           NOT NULL,
    Dead       bit              NOT NULL,
    Cancelled  bit              NOT NULL,
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
    INSERT INTO @given (Id, Fence, Error, RetryAt, Final, Patient)
    SELECT one.id, one.fence, one.error,
           DATEADD(MICROSECOND, one.delay % 60000000, DATEADD(MINUTE, one.delay / 60000000, @now)),
           one.final, one.patient
    FROM OPENJSON(@failures) WITH (
        id      uniqueidentifier '$.id',
        fence   bigint           '$.fence',
        error   nvarchar(max)    '$.error',
        delay   bigint           '$.delay',
        final   bit              '$.final',
        patient bit              '$.patient'
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

    INSERT INTO @held (Id, Fence, Dead, Cancelled, ParentId, ParentSlot, ParentStep, ParentNth)
    SELECT job.Id, job.Fence,
           CASE WHEN job.CancelSlot = job.SlotNo AND given.Patient = 0 THEN 0
                WHEN given.Final = 1 OR job.Attempt >= job.MaxAttempts THEN 1
                ELSE 0 END,
           CASE WHEN job.CancelSlot = job.SlotNo AND given.Patient = 0 THEN 1 ELSE 0 END,
           job.ParentId, job.ParentSlot, job.ParentStep, job.ParentNth
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
        NominalTime, DueAt, ClaimedAt, FinishedAt, Outcome, Error
    )
    SELECT job.Id, job.Fence, job.SlotNo, job.JobName, job.JobKey, job.Queue, @worker, job.Attempt,
           job.NextRunTime, job.DueAt, job.LockedAt, @now, N'failed', given.Error
    FROM @held AS held
    JOIN @given AS given ON given.Id = held.Id AND given.Fence = held.Fence
    JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), READPAST, ROWLOCK, READCOMMITTEDLOCK)
        ON job.Id = held.Id
    OPTION (LOOP JOIN, FORCE ORDER);

    -- A dead child has ended for the step that waits for it; a later retry reports nothing.
    IF EXISTS (SELECT 1 FROM @held WHERE Dead = 1 AND ParentId IS NOT NULL)
    BEGIN
        INSERT INTO reltask.ChildEnds WITH (ROWLOCK) (
            ParentId, SlotNo, Step, Nth, JobId, Outcome, Error, EndedAt
        )
        OUTPUT inserted.ParentId, inserted.SlotNo, inserted.Step INTO @ended (JobId, SlotNo, Name)
        SELECT held.ParentId, held.ParentSlot, held.ParentStep, held.ParentNth, held.Id,
               N'failed', given.Error, @now
        FROM @held AS held
        JOIN @given AS given ON given.Id = held.Id AND given.Fence = held.Fence
        WHERE held.Dead = 1 AND held.ParentId IS NOT NULL
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

    UPDATE job
    SET NotBefore = CASE WHEN held.Cancelled = 1 THEN @now ELSE given.RetryAt END,
        DeadAt = CASE WHEN held.Dead = 1 THEN @now END,
        ParentId = CASE WHEN held.Dead = 0 THEN job.ParentId END,
        ParentSlot = CASE WHEN held.Dead = 0 THEN job.ParentSlot END,
        ParentStep = CASE WHEN held.Dead = 0 THEN job.ParentStep END,
        ParentNth = CASE WHEN held.Dead = 0 THEN job.ParentNth END,
        Losses = 0,
        Isolated = 0,
        LockedBy = NULL,
        LockedAt = NULL,
        HeartbeatAt = NULL,
        ClaimTimeoutMs = NULL,
        LockExpiresAt = NULL,
        ClaimToken = NULL
    FROM @held AS held
    JOIN @given AS given ON given.Id = held.Id AND given.Fence = held.Fence
    JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
        ON job.Id = held.Id AND job.Fence = held.Fence
    WHERE job.LockedBy = @worker
    OPTION (LOOP JOIN, FORCE ORDER);

    IF @@ROWCOUNT <> @locked
        THROW 51222, N'a row was out of reach; everything is rolled back', 1;

    COMMIT TRANSACTION;

    SELECT Id AS id, Fence AS fence, Dead AS dead FROM @held;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
