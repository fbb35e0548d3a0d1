-- Purpose       Remove a job, with a ledger row that says so.
-- Precondition  Unclaimed.
-- Lock order    One row. The UPDATE waits for it and checks it again; the statements after it see a
--               row that no other session can change.
-- Returns       One row with the id, if the job was removed.
-- See           SQL.md: nullable now, T-SQL batch, lock first.
--
-- No worker ran the job, so the ledger row takes the fence that the next claim would have taken.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @id uniqueidentifier = :id;
DECLARE @found int;

BEGIN TRY
    BEGIN TRANSACTION;

    UPDATE job
    SET Fence = job.Fence + 1
    FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
    WHERE job.Id = @id AND job.LockedBy IS NULL;

    SET @found = @@ROWCOUNT;
    IF @found > 0
    BEGIN
        INSERT INTO reltask.Runs (
            JobId, Fence, SlotNo, JobName, JobKey, Queue, Attempt, NominalTime, DueAt, FinishedAt,
            Outcome
        )
        SELECT Id, Fence, SlotNo, JobName, JobKey, Queue, Attempt, NextRunTime, DueAt, @now,
               N'discarded'
        FROM reltask.Jobs WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
        WHERE Id = @id;

        DELETE job
        FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
        WHERE job.Id = @id;
    END;

    COMMIT TRANSACTION;

    SELECT @id AS id WHERE @found > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
