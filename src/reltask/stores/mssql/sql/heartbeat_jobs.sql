-- Purpose       Renew a worker's claims and its own row, and find claims whose answers were lost.
-- Precondition  The job's row still has this id, owner and fence; or this owner and one of the
--               tokens in :pending, whose claims wait for their answer.
-- Lock order    Rows by id; locked rows are skipped, so a heartbeat never waits. A row missing from
--               the result is therefore suspect, not lost; read_holds.sql decides.
-- Returns       One row per renewed claim; and, with stray set, one per claim of this worker that
--               has one of :tokens, which means that its answer was lost.
-- See           SQL.md: nullable now, fence, skip locked, T-SQL batch, duration in minutes, JSON
--               batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @worker nvarchar(256) = :worker,
        @holds nvarchar(max) = :holds,
        @tokens nvarchar(max) = :tokens,
        @pending nvarchar(max) = :pending,
        @alive_for bigint = :alive_for;
DECLARE @given TABLE (Id uniqueidentifier NOT NULL, Fence bigint NOT NULL, PRIMARY KEY (Id, Fence));
DECLARE @renewed TABLE (Id uniqueidentifier NOT NULL, Fence bigint NOT NULL);

BEGIN TRY
    INSERT INTO @given (Id, Fence)
    SELECT DISTINCT hold.id, hold.fence
    FROM OPENJSON(@holds) WITH (id uniqueidentifier '$.id', fence bigint '$.fence') AS hold;

    INSERT INTO @given (Id, Fence)
    SELECT job.Id, job.Fence
    FROM reltask.Jobs AS job WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE job.LockedBy = @worker
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

    UPDATE reltask.Jobs WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
    SET HeartbeatAt = @now,
        LockExpiresAt = DATEADD(
            MILLISECOND, ClaimTimeoutMs % 60000,
            DATEADD(MINUTE, ClaimTimeoutMs / 60000, @now)
        )
    OUTPUT inserted.Id, inserted.Fence INTO @renewed (Id, Fence)
    WHERE LockedBy = @worker
      AND EXISTS (
          SELECT 1
          FROM @given AS given
          WHERE given.Id = Jobs.Id AND given.Fence = Jobs.Fence
      );

    UPDATE reltask.Workers WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
    SET HeartbeatAt = @now,
        AliveUntil = DATEADD(
            MICROSECOND, @alive_for % 60000000,
            DATEADD(MINUTE, @alive_for / 60000000, @now)
        ),
        DeadAt = NULL
    WHERE Id = @worker;

    COMMIT TRANSACTION;

    SELECT renewed.Id AS id, renewed.Fence AS fence, CAST(0 AS bit) AS stray
    FROM @renewed AS renewed
    UNION ALL
    SELECT job.Id, job.Fence, CAST(1 AS bit)
    FROM reltask.Jobs AS job WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE job.LockedBy = @worker
      AND job.ClaimToken IN (
          SELECT CAST(unanswered.value AS uniqueidentifier)
          FROM OPENJSON(@tokens) AS unanswered
      );
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
