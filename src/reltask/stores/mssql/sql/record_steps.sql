-- Purpose       Record steps of durable functions, and consume the signals that they answer.
-- Precondition  Each job's row still has this id, owner and fence. A step that is done or failed
--               stays as it is; one that waits is replaced.
-- Lock order    Rows of jobs by id; then their steps, then their signals. The first UPDATE skips
--               locked rows, so a recording does not wait for them. A row missing from the result
--               is therefore suspect, not lost; read_holds.sql decides.
-- Returns       One row per accepted claim: id, fence, and dead, which is always false. A recording
--               that is sent twice is accepted twice, and written once.
-- Parameters    :recordings has the claims, :steps the steps of all of them, numbered.
-- See           SQL.md: nullable now, fence, lock order by id, skip locked, lock first, T-SQL
--               batch, JSON batch, primary-key lookup.
--
-- Every statement that writes the steps of a job holds the lock of the job's row. So the steps read
-- here are the newest, and no other session writes them before the commit.
--
-- A claim that records steps has had its answer, so its token is not needed any more.
--
-- A waiting step keeps the number of children that it waits for: fold_marks.sql may have subtracted
-- some before the same recording arrives again. Progress sets the attempt to 1, not to 0: the
-- attempt that a suspension gives back is this run's.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @worker nvarchar(256) = :worker,
        @recordings nvarchar(max) = :recordings,
        @steps nvarchar(max) = :steps;
DECLARE @locked int;
DECLARE @given TABLE (
    Id       uniqueidentifier NOT NULL,
    Fence    bigint           NOT NULL,
    Progress int              NOT NULL,
    PRIMARY KEY (Id, Fence)
);
DECLARE @record TABLE (
    Id          uniqueidentifier NOT NULL,
    Fence       bigint           NOT NULL,
    Nth         int              NOT NULL,
    Name        nvarchar(420) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Kind        nvarchar(16)     NOT NULL,
    State       nvarchar(16)     NOT NULL,
    Value       nvarchar(max)    NULL,
    Error       nvarchar(max)    NULL,
    Fingerprint nvarchar(128)    NOT NULL,
    Attempt     int              NOT NULL,
    StartedAt   datetime2(6)     NOT NULL,
    WakeAt      datetime2(6)     NULL,
    Signal      nvarchar(420) COLLATE Latin1_General_100_BIN2 NULL,
    SignalId    nvarchar(400) COLLATE Latin1_General_100_BIN2 NULL,
    Pending     int              NOT NULL,
    PRIMARY KEY (Id, Fence, Nth)
);
DECLARE @held TABLE (
    Id     uniqueidentifier NOT NULL PRIMARY KEY,
    Fence  bigint           NOT NULL,
    SlotNo bigint           NOT NULL
);
DECLARE @added TABLE (JobId uniqueidentifier NOT NULL);

BEGIN TRY
    -- Several recordings of one claim may travel together.
    INSERT INTO @given (Id, Fence, Progress)
    SELECT one.id, one.fence, MAX(one.progress)
    FROM OPENJSON(@recordings) WITH (
        id       uniqueidentifier '$.id',
        fence    bigint           '$.fence',
        progress int              '$.progress'
    ) AS one
    GROUP BY one.id, one.fence;

    INSERT INTO @record (
        Id, Fence, Nth, Name, Kind, State, Value, Error, Fingerprint, Attempt, StartedAt, WakeAt,
        Signal, SignalId, Pending
    )
    SELECT one.id, one.fence, one.nth, one.name, one.kind, one.state, one.value, one.error,
           one.fingerprint, one.attempt, one.started_at, one.wake_at, one.signal, one.signal_id,
           one.pending
    FROM OPENJSON(@steps) WITH (
        id          uniqueidentifier '$.id',
        fence       bigint           '$.fence',
        nth         int              '$.nth',
        name        nvarchar(420)    '$.name',
        kind        nvarchar(16)     '$.kind',
        state       nvarchar(16)     '$.state',
        value       nvarchar(max)    '$.value',
        error       nvarchar(max)    '$.error',
        fingerprint nvarchar(128)    '$.fingerprint',
        attempt     int              '$.attempt',
        started_at  datetime2(6)     '$.started_at',
        wake_at     datetime2(6)     '$.wake_at',
        signal      nvarchar(420)    '$.signal',
        signal_id   nvarchar(400)    '$.signal_id',
        pending     int              '$.pending'
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

    INSERT INTO @held (Id, Fence, SlotNo)
    SELECT job.Id, job.Fence, job.SlotNo
    FROM @given AS given
    JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), READPAST, ROWLOCK, READCOMMITTEDLOCK)
        ON job.Id = given.Id AND job.Fence = given.Fence
    WHERE job.LockedBy = @worker
    OPTION (LOOP JOIN, FORCE ORDER);

    -- A row that was locked before and is free now is not ours to write.
    IF @@ROWCOUNT <> @locked
        THROW 51222, N'a row was out of reach; everything is rolled back', 1;

    -- Of two records of one step in this batch only the last counts.
    UPDATE step
    SET Kind = record.Kind,
        State = record.State,
        Value = record.Value,
        Error = record.Error,
        Fingerprint = record.Fingerprint,
        Attempt = record.Attempt,
        Fence = held.Fence,
        RecordedAt = @now,
        WakeAt = record.WakeAt,
        Signal = record.Signal,
        Pending = CASE WHEN record.State = N'waiting' THEN step.Pending ELSE record.Pending END
    FROM @held AS held
    JOIN @record AS record ON record.Id = held.Id AND record.Fence = held.Fence
    JOIN reltask.Steps AS step WITH (INDEX (PK_Steps), UPDLOCK, ROWLOCK)
        ON step.JobId = held.Id AND step.SlotNo = held.SlotNo AND step.Name = record.Name
    WHERE step.State = N'waiting'
      AND NOT EXISTS (
          SELECT 1
          FROM @record AS later
          WHERE later.Id = record.Id AND later.Fence = record.Fence AND later.Name = record.Name
            AND later.Nth > record.Nth
      )
    OPTION (LOOP JOIN, FORCE ORDER);

    INSERT INTO reltask.Steps WITH (ROWLOCK) (
        JobId, SlotNo, Name, Kind, State, Value, Error, Fingerprint, Attempt, Fence, StartedAt,
        RecordedAt, WakeAt, Signal, Pending
    )
    OUTPUT inserted.JobId INTO @added (JobId)
    SELECT held.Id, held.SlotNo, record.Name, record.Kind, record.State, record.Value, record.Error,
           record.Fingerprint, record.Attempt, held.Fence, record.StartedAt, @now, record.WakeAt,
           record.Signal, record.Pending
    FROM @held AS held
    JOIN @record AS record ON record.Id = held.Id AND record.Fence = held.Fence
    WHERE NOT EXISTS (
        SELECT 1
        FROM reltask.Steps AS step WITH (INDEX (PK_Steps), UPDLOCK, ROWLOCK)
        WHERE step.JobId = held.Id AND step.SlotNo = held.SlotNo AND step.Name = record.Name
    )
      AND NOT EXISTS (
          SELECT 1
          FROM @record AS later
          WHERE later.Id = record.Id AND later.Fence = record.Fence AND later.Name = record.Name
            AND later.Nth > record.Nth
      )
    OPTION (LOOP JOIN, FORCE ORDER);

    -- By the whole key: signals that other sessions are sending are not waited for.
    UPDATE signal
    SET ConsumedBy = record.Name
    FROM @held AS held
    JOIN @record AS record
        ON record.Id = held.Id AND record.Fence = held.Fence AND record.SignalId IS NOT NULL
    JOIN reltask.Signals AS signal WITH (INDEX (PK_Signals), UPDLOCK, ROWLOCK)
        ON signal.JobId = held.Id AND signal.SlotNo = held.SlotNo
        AND signal.Name = record.Signal AND signal.Id = record.SignalId
    WHERE signal.ConsumedBy IS NULL
    OPTION (LOOP JOIN, FORCE ORDER);

    UPDATE job
    SET Steps = job.Steps + (SELECT COUNT(*) FROM @added AS added WHERE added.JobId = held.Id),
        Attempt = CASE WHEN given.Progress = 1 THEN 1 ELSE job.Attempt END,
        Losses = CASE WHEN given.Progress = 1 THEN 0 ELSE job.Losses END,
        Isolated = CASE WHEN given.Progress = 1 THEN 0 ELSE job.Isolated END
    FROM @held AS held
    JOIN @given AS given ON given.Id = held.Id AND given.Fence = held.Fence
    JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
        ON job.Id = held.Id AND job.Fence = held.Fence
    WHERE job.LockedBy = @worker
    OPTION (LOOP JOIN, FORCE ORDER);

    IF @@ROWCOUNT <> @locked
        THROW 51222, N'a row was out of reach; everything is rolled back', 1;

    COMMIT TRANSACTION;

    SELECT Id AS id, Fence AS fence, CAST(0 AS bit) AS dead FROM @held;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
