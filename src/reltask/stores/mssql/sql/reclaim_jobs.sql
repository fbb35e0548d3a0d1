-- Purpose       Take expired claims away: the slot is claimed again, alone, or the job is dead.
-- Precondition  Claimed, and HeartbeatAt plus the lock timeout copied at the claim is in the past.
-- Lock order    The expired rows; then ends of children, then marks, which are only inserted.
--               Locked rows are skipped. The first UPDATE locks, and repeats the condition of its
--               SELECT: every renewal and every new claim moves LockExpiresAt beyond @now. The
--               statements after it see rows that no other session can change.
-- Returns       One row per reclaimed claim: id, fence, task, slot_no, the owner that lost it, and
--               whether the job is dead.
-- See           SQL.md: nullable now, skip locked, lock first, T-SQL batch, mark.
--
-- A locked row must not be skipped any more: another session may hold the row's key in another
-- index while it waits for the row. So the last UPDATE finds the rows by RowNo, the clustered key,
-- which the first UPDATE has locked, and their number is checked.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @limit int = :limit;
DECLARE @taken int;
DECLARE @locked TABLE (Id uniqueidentifier NOT NULL PRIMARY KEY);
DECLARE @expired TABLE (
    Id          uniqueidentifier NOT NULL PRIMARY KEY,
    RowNo       bigint           NOT NULL,
    Fence       bigint           NOT NULL,
    SlotNo      bigint           NOT NULL,
    JobName     nvarchar(256)    NOT NULL,
    Worker      nvarchar(256)    NOT NULL,
    Error       nvarchar(100)    NOT NULL,
    Dead        bit              NOT NULL,
    ParentId    uniqueidentifier NULL,
    ParentSlot  bigint           NULL,
    ParentStep  nvarchar(420) COLLATE Latin1_General_100_BIN2 NULL,
    ParentNth   int              NULL
);
DECLARE @ended TABLE (
    JobId  uniqueidentifier NOT NULL,
    SlotNo bigint           NOT NULL,
    Name   nvarchar(420)    NOT NULL
);

BEGIN TRY
    IF EXISTS (
        SELECT 1
        FROM reltask.Jobs WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE LockedBy IS NOT NULL AND LockExpiresAt < @now
    )
    BEGIN
        BEGIN TRANSACTION;

        UPDATE reltask.Jobs WITH (READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
        SET ClaimToken = NULL
        OUTPUT inserted.Id INTO @locked (Id)
        WHERE Id IN (
            SELECT TOP (@limit) job.Id
            FROM reltask.Jobs AS job WITH (READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
            WHERE job.LockedBy IS NOT NULL AND job.LockExpiresAt < @now
            ORDER BY job.LockExpiresAt
        )
          AND LockedBy IS NOT NULL AND LockExpiresAt < @now;
        SET @taken = @@ROWCOUNT;

        INSERT INTO @expired (
            Id, RowNo, Fence, SlotNo, JobName, Worker, Error, Dead,
            ParentId, ParentSlot, ParentStep, ParentNth
        )
        SELECT job.Id, job.RowNo, job.Fence, job.SlotNo, job.JobName, job.LockedBy,
               N'no heartbeat since ' + CONVERT(nvarchar(23), job.HeartbeatAt, 126) + N'Z',
               CASE WHEN job.Attempt >= job.MaxAttempts THEN 1 ELSE 0 END,
               job.ParentId, job.ParentSlot, job.ParentStep, job.ParentNth
        FROM @locked AS locked
        JOIN reltask.Jobs AS job WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK) ON job.Id = locked.Id;

        -- A run that is in the ledger already must not prevent the others from being freed.
        INSERT INTO reltask.Runs (
            JobId, Fence, SlotNo, JobName, JobKey, Queue, Worker, Attempt,
            NominalTime, DueAt, ClaimedAt, FinishedAt, Outcome, Error
        )
        SELECT job.Id, job.Fence, job.SlotNo, job.JobName, job.JobKey, job.Queue, job.LockedBy,
               job.Attempt, job.NextRunTime, job.DueAt, job.LockedAt, @now, N'lost', expired.Error
        FROM @expired AS expired
        JOIN reltask.Jobs AS job WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK) ON job.Id = expired.Id
        WHERE NOT EXISTS (
            SELECT 1
            FROM reltask.Runs AS run
            WHERE run.JobId = job.Id AND run.Fence = job.Fence
        );

        -- A dead child has ended for the step that waits for it; a later retry reports nothing.
        IF EXISTS (SELECT 1 FROM @expired WHERE Dead = 1 AND ParentId IS NOT NULL)
        BEGIN
            INSERT INTO reltask.ChildEnds WITH (ROWLOCK) (
                ParentId, SlotNo, Step, Nth, JobId, Outcome, Error, EndedAt
            )
            OUTPUT inserted.ParentId, inserted.SlotNo, inserted.Step
            INTO @ended (JobId, SlotNo, Name)
            SELECT expired.ParentId, expired.ParentSlot, expired.ParentStep, expired.ParentNth,
                   expired.Id, N'failed', expired.Error, @now
            FROM @expired AS expired
            WHERE expired.Dead = 1 AND expired.ParentId IS NOT NULL
              AND NOT EXISTS (
                  SELECT 1
                  FROM reltask.ChildEnds AS known WITH (INDEX (PK_ChildEnds))
                  WHERE known.ParentId = expired.ParentId AND known.SlotNo = expired.ParentSlot
                    AND known.Step = expired.ParentStep AND known.Nth = expired.ParentNth
              )
            OPTION (LOOP JOIN, FORCE ORDER);

            INSERT INTO reltask.Marks WITH (ROWLOCK) (At, Kind, JobId, SlotNo, Name)
            SELECT @now, N'child', JobId, SlotNo, Name
            FROM @ended;
        END;

        UPDATE job
        SET DeadAt = CASE WHEN expired.Dead = 1 THEN @now END,
            ParentId = CASE WHEN expired.Dead = 0 THEN job.ParentId END,
            ParentSlot = CASE WHEN expired.Dead = 0 THEN job.ParentSlot END,
            ParentStep = CASE WHEN expired.Dead = 0 THEN job.ParentStep END,
            ParentNth = CASE WHEN expired.Dead = 0 THEN job.ParentNth END,
            Losses = job.Losses + 1,
            Isolated = CASE WHEN job.Losses > 0 THEN 1 ELSE 0 END,
            LockedBy = NULL,
            LockedAt = NULL,
            HeartbeatAt = NULL,
            ClaimTimeoutMs = NULL,
            LockExpiresAt = NULL,
            ClaimToken = NULL
        FROM @expired AS expired
        JOIN reltask.Jobs AS job WITH (INDEX (UQ_Jobs_RowNo), UPDLOCK, ROWLOCK)
            ON job.RowNo = expired.RowNo
        WHERE job.Fence = expired.Fence AND job.LockedBy IS NOT NULL
        OPTION (LOOP JOIN, FORCE ORDER);

        IF @@ROWCOUNT <> @taken
            THROW 51222, N'a row was out of reach; everything is rolled back', 1;

        COMMIT TRANSACTION;
    END;

    SELECT Id AS id, Fence AS fence, JobName AS task, SlotNo AS slot_no, Worker AS worker,
           Dead AS dead FROM @expired;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
