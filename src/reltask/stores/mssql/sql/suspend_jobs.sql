-- Purpose       End runs of durable functions that wait: the slot and its steps stay, the attempt
--               is given back, and the job is due at its wake time.
-- Precondition  Each job's row still has this id, owner and fence. A row that does not match is not
--               written, and is missing from the result.
-- Lock order    Rows by id. The first UPDATE skips locked rows, so a settlement does not wait for
--               them. A row missing from the result is therefore suspect, not lost; read_holds.sql
--               decides.
-- Returns       One row per accepted suspension: id, fence, and dead, which is always false.
-- Parameters    :suspensions has the WakeSeq that read_waits.sql has returned to each run, and its
--               wake time. A wake time that is null: only a mark wakes the job.
-- See           SQL.md: nullable now, fence, lock order by id, skip locked, lock first, T-SQL
--               batch, JSON batch, mark.
--
-- Only WakeSeq decides, as it is in the locked row. If a mark was folded after the run has looked,
-- it is not the number seen, and the job is due at once. A mark that is folded later finds the row
-- suspended: see fold_marks.sql. There is nothing in between, because both lock the row. Progress
-- stays for the next run.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @worker nvarchar(256) = :worker,
        @suspensions nvarchar(max) = :suspensions;
DECLARE @locked int;
DECLARE @given TABLE (
    Id     uniqueidentifier NOT NULL,
    Fence  bigint           NOT NULL,
    Seen   bigint           NOT NULL,
    WakeAt datetime2(6)     NOT NULL,
    PRIMARY KEY (Id, Fence)
);
DECLARE @held TABLE (Id uniqueidentifier NOT NULL PRIMARY KEY, Fence bigint NOT NULL);

BEGIN TRY
    INSERT INTO @given (Id, Fence, Seen, WakeAt)
    SELECT one.id, one.fence, one.seen,
           COALESCE(one.wake_at, CONVERT(datetime2(6), '8999-12-31', 126))
    FROM OPENJSON(@suspensions) WITH (
        id      uniqueidentifier '$.id',
        fence   bigint           '$.fence',
        seen    bigint           '$.seen',
        wake_at datetime2(6)     '$.wake_at'
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

    INSERT INTO @held (Id, Fence)
    SELECT job.Id, job.Fence
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
        NominalTime, DueAt, ClaimedAt, FinishedAt, Outcome
    )
    SELECT job.Id, job.Fence, job.SlotNo, job.JobName, job.JobKey, job.Queue, @worker, job.Attempt,
           job.NextRunTime, job.DueAt, job.LockedAt, @now, N'suspended'
    FROM @held AS held
    JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), READPAST, ROWLOCK, READCOMMITTEDLOCK)
        ON job.Id = held.Id
    OPTION (LOOP JOIN, FORCE ORDER);

    UPDATE job
    SET Suspended = 1,
        NotBefore = CASE WHEN job.WakeSeq <> given.Seen OR job.CancelSlot = job.SlotNo THEN @now
                         ELSE given.WakeAt END,
        Attempt = CASE WHEN job.Attempt > 0 THEN job.Attempt - 1 ELSE 0 END,
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

    SELECT Id AS id, Fence AS fence, CAST(0 AS bit) AS dead FROM @held;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
