-- Purpose       Remove a job, with a ledger row that says so.
-- Precondition  Unclaimed.
-- Lock order    One row; then the end of a child, then a mark, which are only inserted. The UPDATE
--               waits for the row and checks it again; the statements after it see a row that no
--               other session can change.
-- Returns       One row with the id, if the job was removed.
-- See           SQL.md: nullable now, T-SQL batch, lock first, mark.
--
-- No worker ran the job, so the ledger row takes the fence that the next claim would have taken.
-- A child has ended for the step that waits for it; a dead one had ended before. Its own children
-- are left to cancel_children.sql: no parent is locked before its children.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @id uniqueidentifier = :id;
DECLARE @found int;
DECLARE @ended TABLE (
    JobId  uniqueidentifier NOT NULL,
    SlotNo bigint           NOT NULL,
    Name   nvarchar(420)    NOT NULL
);

BEGIN TRY
    BEGIN TRANSACTION;

    UPDATE job
    SET Fence = job.Fence + 1
    FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
    WHERE job.Id = @id AND job.LockedBy IS NULL;

    SET @found = @@ROWCOUNT;
    IF @found > 0
    BEGIN
        INSERT INTO reltask.Runs WITH (ROWLOCK) (
            JobId, Fence, SlotNo, JobName, JobKey, Queue, Attempt, NominalTime, DueAt, FinishedAt,
            Outcome, Steps, EndsJob
        )
        SELECT Id, Fence, SlotNo, JobName, JobKey, Queue, Attempt, NextRunTime, DueAt, @now,
               N'discarded', NULLIF(Steps, 0), 1
        FROM reltask.Jobs WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
        WHERE Id = @id;

        INSERT INTO reltask.ChildEnds WITH (ROWLOCK) (
            ParentId, SlotNo, Step, Nth, JobId, Outcome, EndedAt
        )
        OUTPUT inserted.ParentId, inserted.SlotNo, inserted.Step INTO @ended (JobId, SlotNo, Name)
        SELECT job.ParentId, job.ParentSlot, job.ParentStep, job.ParentNth, job.Id, N'discarded',
               @now
        FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
        WHERE job.Id = @id AND job.ParentId IS NOT NULL
          AND NOT EXISTS (
              SELECT 1
              FROM reltask.ChildEnds AS known WITH (INDEX (PK_ChildEnds))
              WHERE known.ParentId = job.ParentId AND known.SlotNo = job.ParentSlot
                AND known.Step = job.ParentStep AND known.Nth = job.ParentNth
          )
        OPTION (LOOP JOIN, FORCE ORDER);

        INSERT INTO reltask.Marks WITH (ROWLOCK) (At, Kind, JobId, SlotNo, Name)
        SELECT @now, N'child', JobId, SlotNo, Name
        FROM @ended;

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
