-- Purpose       Renew a worker's claims and its own row, and find claims whose answers were lost.
-- Precondition  The job's row still has this id, owner and fence; or this owner and one of the
--               tokens in :pending, whose claims wait for their answer.
-- Lock order    PK_Jobs by id, then the rows; locked ones are skipped, so a heartbeat never waits.
--               A row missing from the result is therefore suspect, not lost; read_holds.sql
--               decides.
-- Returns       One row per renewed claim, cancelled is 1 if its slot is; and, with stray set, one
--               per claim of this worker that has one of :tokens, which means that its answer was
--               lost.
-- See           SQL.md: nullable now, fence, skip locked, filtered index, index first, T-SQL batch,
--               duration in minutes, JSON batch, primary-key lookup.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @worker nvarchar(256) = :worker,
        @holds nvarchar(max) = :holds,
        @tokens nvarchar(max) = :tokens,
        @pending nvarchar(max) = :pending,
        @alive_for bigint = :alive_for,
        @longest_ms bigint = 3155760000000;
DECLARE @given TABLE (Id uniqueidentifier NOT NULL, Fence bigint NOT NULL, PRIMARY KEY (Id, Fence));
DECLARE @renewed TABLE (
    Id         uniqueidentifier NOT NULL,
    Fence      bigint           NOT NULL,
    SlotNo     bigint           NOT NULL,
    CancelSlot bigint           NULL
);

BEGIN TRY
    INSERT INTO @given (Id, Fence)
    SELECT DISTINCT hold.id, hold.fence
    FROM OPENJSON(@holds) WITH (id uniqueidentifier '$.id', fence bigint '$.fence') AS hold;

    INSERT INTO @given (Id, Fence)
    SELECT job.Id, job.Fence
    FROM reltask.Jobs AS job
        WITH (INDEX (IX_Jobs_Held), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE job.LockedBy = @worker AND job.LockedBy IS NOT NULL
      AND job.ClaimToken IN (
          SELECT CAST(unanswered.value AS uniqueidentifier)
          FROM OPENJSON(@pending) AS unanswered
      )
      AND NOT EXISTS (
          SELECT 1
          FROM @given AS given
          WHERE given.Id = job.Id AND given.Fence = job.Fence
      );

    BEGIN TRANSACTION;

    UPDATE job
    SET HeartbeatAt = @now,
        -- A lock timeout out of its range, see claim_jobs.sql, would keep the row for a century.
        LockExpiresAt = CASE
            WHEN job.ClaimTimeoutMs > @longest_ms THEN job.LockExpiresAt
            ELSE DATEADD(
                MILLISECOND, job.ClaimTimeoutMs % 60000,
                DATEADD(MINUTE, job.ClaimTimeoutMs / 60000, @now)
            )
        END
    OUTPUT inserted.Id, inserted.Fence, inserted.SlotNo, inserted.CancelSlot
    INTO @renewed (Id, Fence, SlotNo, CancelSlot)
    FROM @given AS given
    JOIN reltask.Jobs AS job
        WITH (INDEX (PK_Jobs), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
        ON job.Id = given.Id AND job.Fence = given.Fence
    WHERE job.LockedBy = @worker
    OPTION (LOOP JOIN, FORCE ORDER);

    UPDATE reltask.Workers WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
    SET HeartbeatAt = @now,
        AliveUntil = DATEADD(
            MICROSECOND, @alive_for % 60000000,
            DATEADD(MINUTE, @alive_for / 60000000, @now)
        ),
        DeadAt = NULL
    WHERE Id = @worker;

    COMMIT TRANSACTION;

    SELECT renewed.Id AS id, renewed.Fence AS fence, CAST(0 AS bit) AS stray,
           CAST(CASE WHEN renewed.CancelSlot = renewed.SlotNo THEN 1 ELSE 0 END AS bit) AS cancelled
    FROM @renewed AS renewed
    UNION ALL
    SELECT job.Id, job.Fence, CAST(1 AS bit), CAST(0 AS bit)
    FROM reltask.Jobs AS job
        WITH (INDEX (IX_Jobs_Held), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE job.LockedBy = @worker AND job.LockedBy IS NOT NULL
      AND job.ClaimToken IN (
          SELECT CAST(unanswered.value AS uniqueidentifier)
          FROM OPENJSON(@tokens) AS unanswered
      );
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
