-- Purpose       Remove a step's record, so that the function runs it again; with :and_after also
--               those that were started after it.
-- Precondition  The job is unclaimed, and the step is of its current slot. No child of the steps
--               lives.
-- Lock order    The row of the job, then its steps, signals, ends of children and their marks. The
--               first UPDATE waits for the row and checks it again; after it, no other session can
--               claim the job or write its steps. Its children are read before it, and may be
--               waited for: no parent is locked before its children.
-- Returns       One row: the number of removed steps.
-- See           SQL.md: nullable now, lock first, T-SQL batch.
--
-- Signals that the steps consumed wait again, and the ends of their children are forgotten, with
-- the marks that they have left. A suspended job becomes due: what it waits for may be another
-- thing now.
--
-- While a child lives, nothing is removed: its end would take the place of the new child's, which
-- would then not be counted.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @job_id uniqueidentifier = :job_id,
        @step nvarchar(420) = :step,
        @and_after bit = :and_after;
DECLARE @fence bigint,
        @slot_no bigint,
        @started_at datetime2(6),
        @removed int = 0;
DECLARE @forgotten TABLE (
    Name nvarchar(420) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY
);

DECLARE @live TABLE (
    Slot bigint NOT NULL,
    Name nvarchar(420) COLLATE Latin1_General_100_BIN2 NOT NULL
);

BEGIN TRY
    -- Under this fence no worker can add children, because that needs a claim.
    SELECT @fence = Fence
    FROM reltask.Jobs WITH (INDEX (PK_Jobs), FORCESEEK)
    WHERE Id = @job_id AND LockedBy IS NULL;

    INSERT INTO @live (Slot, Name)
    SELECT ParentSlot, ParentStep
    FROM reltask.Jobs WITH (INDEX (IX_Jobs_Children), FORCESEEK)
    WHERE ParentId IS NOT NULL AND ParentId = @job_id;

    BEGIN TRANSACTION;

    UPDATE job
    SET Suspended = job.Suspended
    FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
    WHERE job.Id = @job_id AND job.LockedBy IS NULL AND job.Fence = @fence;

    IF @@ROWCOUNT > 0
    BEGIN
        SELECT @slot_no = SlotNo
        FROM reltask.Jobs WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
        WHERE Id = @job_id;

        SELECT @started_at = StartedAt
        FROM reltask.Steps WITH (INDEX (PK_Steps), UPDLOCK, ROWLOCK)
        WHERE JobId = @job_id AND SlotNo = @slot_no AND Name = @step;

        INSERT INTO @forgotten (Name)
        SELECT Name
        FROM reltask.Steps WITH (INDEX (PK_Steps), UPDLOCK, ROWLOCK)
        WHERE JobId = @job_id AND SlotNo = @slot_no
          AND (Name = @step OR (@and_after = 1 AND StartedAt > @started_at));
        SET @removed = @@ROWCOUNT;

        IF EXISTS (
            SELECT 1
            FROM @live AS live
            JOIN @forgotten AS forgotten ON forgotten.Name = live.Name
            WHERE live.Slot = @slot_no
        )
            SET @removed = 0;
    END;

    IF @removed > 0
    BEGIN
        DELETE step
        FROM @forgotten AS forgotten
        JOIN reltask.Steps AS step WITH (INDEX (PK_Steps), UPDLOCK, ROWLOCK)
            ON step.JobId = @job_id AND step.SlotNo = @slot_no AND step.Name = forgotten.Name
        OPTION (LOOP JOIN, FORCE ORDER);

        -- A signal that a session is still sending is not consumed: it is skipped.
        UPDATE signal
        SET ConsumedBy = NULL
        FROM @forgotten AS forgotten
        JOIN reltask.Signals AS signal
            WITH (INDEX (PK_Signals), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
            ON signal.JobId = @job_id AND signal.SlotNo = @slot_no
            AND signal.ConsumedBy = forgotten.Name
        OPTION (LOOP JOIN, FORCE ORDER);

        DELETE known
        FROM @forgotten AS forgotten
        JOIN reltask.ChildEnds AS known WITH (INDEX (PK_ChildEnds), UPDLOCK, ROWLOCK)
            ON known.ParentId = @job_id AND known.SlotNo = @slot_no AND known.Step = forgotten.Name
        OPTION (LOOP JOIN, FORCE ORDER);

        -- Only a session that has locked the job folds its marks.
        DELETE mark
        FROM @forgotten AS forgotten
        JOIN reltask.Marks AS mark
            WITH (INDEX (PK_Marks), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
            ON mark.Queue = N'' AND mark.Task = N'' AND mark.Kind = N'child'
            AND mark.JobId = @job_id AND mark.SlotNo = @slot_no AND mark.Name = forgotten.Name
        OPTION (LOOP JOIN, FORCE ORDER);

        UPDATE job
        SET Steps = CASE WHEN job.Steps > @removed THEN job.Steps - @removed ELSE 0 END,
            NotBefore = CASE WHEN job.Suspended = 1 AND job.DueAt > @now
                             THEN @now ELSE job.NotBefore END
        FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
        WHERE job.Id = @job_id AND job.LockedBy IS NULL;
    END;

    COMMIT TRANSACTION;

    SELECT @removed AS removed;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
