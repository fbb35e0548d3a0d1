-- Purpose       Cancel a job's current slot. A one-off that no worker holds ends here; any other
--               job is marked, and its holder, or the worker that claims it next, ends the slot.
-- Precondition  Not dead; still the fence that was seen, if one is given.
-- Lock order    One row; then the end of a child, then a mark, which are only inserted. The UPDATE
--               waits for the row and checks it again; the statements after it see a row that no
--               other session can change.
-- Returns       One row, unless the job is gone or dead: whether it has ended.
-- See           SQL.md: nullable now, T-SQL batch, lock first, mark.
--
-- The mark is the number of the slot. If a completion wins, the job is in a later slot, and the
-- mark means nothing; a flag would cancel that slot as well. The next slot of a schedule is
-- computed by a worker, so the slot of a recurring job is ended by one, without a body: it is due
-- now. A one-off that is paused while it runs is resumed, so that a worker can end it whatever
-- becomes of its holder.
--
-- No worker ran the job that ends here, so the ledger row takes the fence that the next claim would
-- have taken. Its own children are left to cancel_children.sql.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @id uniqueidentifier = :id,
        @fence bigint = :fence;
DECLARE @found int,
        @ends bit = 0;
DECLARE @ended TABLE (
    JobId  uniqueidentifier NOT NULL,
    SlotNo bigint           NOT NULL,
    Name   nvarchar(420)    NOT NULL
);

BEGIN TRY
    BEGIN TRANSACTION;

    UPDATE job
    SET CancelSlot = job.SlotNo,
        NotBefore = CASE WHEN job.LockedBy IS NULL AND job.Recurring = 1 AND job.DueAt > @now
                         THEN @now ELSE job.NotBefore END,
        PausedAt = CASE WHEN job.Recurring = 1 THEN job.PausedAt END
    FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
    WHERE job.Id = @id AND job.DeadAt IS NULL AND (@fence IS NULL OR job.Fence = @fence);
    SET @found = @@ROWCOUNT;

    IF @found > 0 AND EXISTS (
        SELECT 1
        FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
        WHERE job.Id = @id AND job.DeadAt IS NULL AND job.LockedBy IS NULL AND job.Recurring = 0
    )
    BEGIN
        SET @ends = 1;

        INSERT INTO reltask.Runs WITH (ROWLOCK) (
            JobId, Fence, SlotNo, JobName, JobKey, Queue, Attempt, NominalTime, DueAt, FinishedAt,
            Outcome, Steps, EndsJob
        )
        SELECT Id, Fence + 1, SlotNo, JobName, JobKey, Queue, Attempt, NextRunTime, DueAt, @now,
               N'cancelled', NULLIF(Steps, 0), 1
        FROM reltask.Jobs WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
        WHERE Id = @id;

        INSERT INTO reltask.ChildEnds WITH (ROWLOCK) (
            ParentId, SlotNo, Step, Nth, JobId, Outcome, EndedAt
        )
        OUTPUT inserted.ParentId, inserted.SlotNo, inserted.Step INTO @ended (JobId, SlotNo, Name)
        SELECT job.ParentId, job.ParentSlot, job.ParentStep, job.ParentNth, job.Id, N'cancelled',
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

    SELECT @ends AS ended WHERE @found > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
