-- Purpose       remove a job, with a ledger row that says so. No worker ran it: the row takes the fence that the next
--               claim would have taken.
-- Precondition  unclaimed.
-- Lock order    one row; waits for it, and checks again afterwards. It is the UPDATE that locks and looks: what comes
--               after it sees a row that nobody else can change.

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
            JobId, Fence, SlotNo, JobName, JobKey, Queue, Attempt, NominalTime, DueAt, FinishedAt, Outcome)
        SELECT Id, Fence, SlotNo, JobName, JobKey, Queue, Attempt, NextRunTime, DueAt, @now, N'discarded'
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
