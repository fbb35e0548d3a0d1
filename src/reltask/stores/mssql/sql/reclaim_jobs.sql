-- Purpose       Take expired claims away: the slot is claimed again, alone, or the job is dead.
-- Precondition  Claimed, and HeartbeatAt plus the lock timeout copied at the claim is in the past.
-- Lock order    IX_Jobs_Expiring by expiry, then the row by RowNo; locked ones are skipped. Then
--               ends of children, then marks, which are only inserted. The first UPDATE locks, and
--               repeats the condition of its SELECT: every renewal and every new claim moves
--               LockExpiresAt beyond @now. The statements after it see rows that no other session
--               can change.
-- Returns       One row per reclaimed claim: id, fence, task, slot_no, the owner that lost it, and
--               whether the job is dead.
-- See           SQL.md: nullable now, skip locked, index first, lock first, T-SQL batch,
--               mark.
--
-- A locked row must not be skipped any more: another session may hold the row's key in another
-- index while it waits for the row. So the last UPDATE finds the rows by RowNo, the clustered key,
-- which the first UPDATE has locked, and their number is checked.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @limit int = :limit;
DECLARE @taken int;
DECLARE @expired TABLE (
    RowNo       bigint           NOT NULL PRIMARY KEY,
    Id          uniqueidentifier NOT NULL,
    Fence       bigint           NOT NULL,
    SlotNo      bigint           NOT NULL,
    JobName     nvarchar(256)    NOT NULL,
    Worker      nvarchar(256)    NOT NULL,
    HeartbeatAt datetime2(6)     NOT NULL,
    Attempt     int              NOT NULL,
    MaxAttempts int              NULL,
    CancelSlot  bigint           NULL,
    Error       nvarchar(100)    NULL,
    Dead        bit              NOT NULL DEFAULT 0,
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
        FROM reltask.Jobs
            WITH (INDEX (IX_Jobs_Expiring), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE LockedBy IS NOT NULL AND LockExpiresAt < @now
    )
    BEGIN
        BEGIN TRANSACTION;

        UPDATE job
        SET ClaimToken = NULL
        OUTPUT inserted.RowNo, inserted.Id, inserted.Fence, inserted.SlotNo, inserted.JobName,
               inserted.LockedBy, inserted.HeartbeatAt, inserted.Attempt, inserted.MaxAttempts,
               inserted.CancelSlot,
               inserted.ParentId, inserted.ParentSlot, inserted.ParentStep, inserted.ParentNth
        INTO @expired (
            RowNo, Id, Fence, SlotNo, JobName, Worker, HeartbeatAt, Attempt, MaxAttempts,
            CancelSlot,
            ParentId, ParentSlot, ParentStep, ParentNth
        )
        FROM (
            SELECT TOP (@limit) stale.RowNo
            FROM reltask.Jobs AS stale
                WITH (
                    INDEX (IX_Jobs_Expiring), FORCESEEK, READPAST, UPDLOCK, ROWLOCK,
                    READCOMMITTEDLOCK
                )
            WHERE stale.LockedBy IS NOT NULL AND stale.LockExpiresAt < @now
            ORDER BY stale.LockExpiresAt
        ) AS late
        JOIN reltask.Jobs AS job
            WITH (INDEX (UQ_Jobs_RowNo), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
            ON job.RowNo = late.RowNo
        WHERE job.LockedBy IS NOT NULL AND job.LockExpiresAt < @now
        OPTION (LOOP JOIN, FORCE ORDER);
        SET @taken = @@ROWCOUNT;

        UPDATE @expired
        SET Error = N'no heartbeat since ' + CONVERT(nvarchar(23), HeartbeatAt, 126) + N'Z',
            Dead = CASE WHEN CancelSlot = SlotNo THEN 0
                        WHEN Attempt >= MaxAttempts THEN 1
                        ELSE 0 END;

        -- A run that is in the ledger already must not prevent the others from being freed.
        INSERT INTO reltask.Runs WITH (ROWLOCK) (
            JobId, Fence, SlotNo, JobName, JobKey, Queue, Worker, Attempt,
            NominalTime, DueAt, ClaimedAt, FinishedAt, Outcome, Error
        )
        SELECT job.Id, job.Fence, job.SlotNo, job.JobName, job.JobKey, job.Queue, job.LockedBy,
               job.Attempt, job.NextRunTime, job.DueAt, job.LockedAt, @now, N'lost', expired.Error
        FROM @expired AS expired
        JOIN reltask.Jobs AS job WITH (INDEX (UQ_Jobs_RowNo), UPDLOCK, ROWLOCK)
            ON job.RowNo = expired.RowNo
        WHERE NOT EXISTS (
            SELECT 1
            FROM reltask.Runs AS run WITH (INDEX (PK_Runs), FORCESEEK)
            WHERE run.JobId = job.Id AND run.Fence = job.Fence
        )
        OPTION (LOOP JOIN, FORCE ORDER);

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
