-- Purpose       End jobs whose parent's slot has ended: no step waits for them any more. Those that
--               run are cancelled: their holders stop them.
-- Precondition  A parent whose slot has ended, according to the ledger.
-- Lock order    The children by id; locked rows are skipped, so the batch never waits for one. No
--               row of a parent is locked: no parent is locked before its children.
-- Returns       One row per child: id, and whether it has ended; else it was cancelled now.
-- Parameters    :parents are the parents to look at, as JSON; null: all.
-- See           SQL.md: nullable now, lock order by id, skip locked, lock first, ended slot,
--               filtered index, T-SQL batch.
--
-- The cost depends on the number of parents, and of children that they have left. The end of a slot
-- is final, so it is read before any row is locked; the child itself is checked again under its
-- lock.
--
-- No worker ran the job, so the ledger row takes the fence that the next claim would have taken. No
-- step waits for the end, so none is reported.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @parents nvarchar(max) = :parents,
        @limit int = :limit;
DECLARE @ended TABLE (
    ParentId   uniqueidentifier NOT NULL,
    ParentSlot bigint           NOT NULL,
    PRIMARY KEY (ParentId, ParentSlot)
);
DECLARE @orphans TABLE (
    Id         uniqueidentifier NOT NULL PRIMARY KEY,
    ParentId   uniqueidentifier NOT NULL,
    ParentSlot bigint           NOT NULL
);
DECLARE @locked TABLE (Id uniqueidentifier NOT NULL PRIMARY KEY, Holder nvarchar(256) NULL);

BEGIN TRY
    INSERT INTO @ended (ParentId, ParentSlot)
    SELECT family.ParentId, family.ParentSlot
    FROM (
        SELECT DISTINCT ParentId, ParentSlot
        FROM reltask.Jobs WITH (INDEX (IX_Jobs_Children), READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE ParentId IS NOT NULL
          AND (
              @parents IS NULL
              OR ParentId IN (
                  SELECT CAST(given.value AS uniqueidentifier)
                  FROM OPENJSON(@parents) AS given
              )
          )
    ) AS family
    WHERE EXISTS (
        SELECT 1
        FROM reltask.Runs AS run
            WITH (INDEX (UX_Runs_SlotEndsOnce), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE run.JobId = family.ParentId AND run.SlotNo = family.ParentSlot
          AND run.Outcome IN (N'succeeded', N'cancelled', N'skipped', N'discarded')
    );

    INSERT INTO @orphans (Id, ParentId, ParentSlot)
    SELECT TOP (@limit) child.Id, child.ParentId, child.ParentSlot
    FROM @ended AS ended
    JOIN reltask.Jobs AS child
        WITH (INDEX (IX_Jobs_Children), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        ON child.ParentId = ended.ParentId AND child.ParentSlot = ended.ParentSlot
    WHERE child.ParentId IS NOT NULL
      AND (
          child.LockedBy IS NULL OR child.CancelSlot IS NULL OR child.CancelSlot <> child.SlotNo
      );

    IF EXISTS (SELECT 1 FROM @orphans)
    BEGIN
        BEGIN TRANSACTION;

        UPDATE job
        SET CancelSlot = job.SlotNo,
            PausedAt = NULL
        OUTPUT inserted.Id, inserted.LockedBy INTO @locked (Id, Holder)
        FROM @orphans AS orphan
        JOIN reltask.Jobs AS job
            WITH (INDEX (PK_Jobs), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
            ON job.Id = orphan.Id
        WHERE job.ParentId = orphan.ParentId AND job.ParentSlot = orphan.ParentSlot
        OPTION (LOOP JOIN, FORCE ORDER);

        INSERT INTO reltask.Runs WITH (ROWLOCK) (
            JobId, Fence, SlotNo, JobName, JobKey, Queue, Attempt, NominalTime, DueAt, FinishedAt,
            Outcome, Error, Steps, EndsJob
        )
        SELECT job.Id, job.Fence + 1, job.SlotNo, job.JobName, job.JobKey, job.Queue, job.Attempt,
               job.NextRunTime, job.DueAt, @now, N'cancelled', N'its parent has ended',
               NULLIF(job.Steps, 0), 1
        FROM @locked AS locked
        JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK) ON job.Id = locked.Id
        WHERE locked.Holder IS NULL
        OPTION (LOOP JOIN, FORCE ORDER);

        DELETE job
        FROM @locked AS locked
        JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK) ON job.Id = locked.Id
        WHERE locked.Holder IS NULL AND job.LockedBy IS NULL
        OPTION (LOOP JOIN, FORCE ORDER);

        IF @@ROWCOUNT <> (SELECT COUNT(*) FROM @locked WHERE Holder IS NULL)
            THROW 51222, N'a row was out of reach; everything is rolled back', 1;

        COMMIT TRANSACTION;
    END;

    SELECT Id AS id, CASE WHEN Holder IS NULL THEN 1 ELSE 0 END AS ended FROM @locked;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
