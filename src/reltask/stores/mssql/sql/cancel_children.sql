-- Purpose       End jobs whose parent's slot has ended: no step waits for them any more.
-- Precondition  Unclaimed, with a parent whose slot has ended, according to the ledger.
-- Lock order    The children by id; locked rows are skipped, so the batch never waits for one. No
--               row of a parent is locked: no parent is locked before its children.
-- Returns       One row: the number of removed jobs.
-- See           SQL.md: nullable now, lock order by id, skip locked, lock first, ended slot,
--               filtered index, T-SQL batch.
--
-- The cost depends on the number of parents, and of children that they have left. The end of a slot
-- is final, so it is read before any row is locked; the child itself is checked again under its
-- lock. A child that is claimed for longer than its parent's ledger row is kept stays an ordinary
-- job.
--
-- No worker ran the job, so the ledger row takes the fence that the next claim would have taken.
-- No step waits for the end, so none is reported.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @limit int = :limit;
DECLARE @removed int = 0;
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
DECLARE @locked TABLE (Id uniqueidentifier NOT NULL PRIMARY KEY);

BEGIN TRY
    INSERT INTO @ended (ParentId, ParentSlot)
    SELECT family.ParentId, family.ParentSlot
    FROM (
        SELECT DISTINCT ParentId, ParentSlot
        FROM reltask.Jobs WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE ParentId IS NOT NULL
    ) AS family
    WHERE EXISTS (
        SELECT 1
        FROM reltask.Runs AS run WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE run.JobId = family.ParentId AND run.SlotNo = family.ParentSlot
          AND run.Outcome IN (N'succeeded', N'cancelled', N'skipped', N'discarded')
    );

    INSERT INTO @orphans (Id, ParentId, ParentSlot)
    SELECT TOP (@limit) child.Id, child.ParentId, child.ParentSlot
    FROM @ended AS ended
    JOIN reltask.Jobs AS child WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        ON child.ParentId = ended.ParentId AND child.ParentSlot = ended.ParentSlot
    WHERE child.ParentId IS NOT NULL AND child.LockedBy IS NULL;

    IF EXISTS (SELECT 1 FROM @orphans)
    BEGIN
        BEGIN TRANSACTION;

        UPDATE job
        SET Fence = job.Fence + 1
        OUTPUT inserted.Id INTO @locked (Id)
        FROM @orphans AS orphan
        JOIN reltask.Jobs AS job
            WITH (INDEX (PK_Jobs), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
            ON job.Id = orphan.Id
        WHERE job.LockedBy IS NULL
          AND job.ParentId = orphan.ParentId AND job.ParentSlot = orphan.ParentSlot
        OPTION (LOOP JOIN, FORCE ORDER);

        INSERT INTO reltask.Runs (
            JobId, Fence, SlotNo, JobName, JobKey, Queue, Attempt, NominalTime, DueAt, FinishedAt,
            Outcome, Error, Steps, EndsJob
        )
        SELECT job.Id, job.Fence, job.SlotNo, job.JobName, job.JobKey, job.Queue, job.Attempt,
               job.NextRunTime, job.DueAt, @now, N'cancelled', N'its parent has ended',
               NULLIF(job.Steps, 0), 1
        FROM @locked AS locked
        JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK) ON job.Id = locked.Id
        OPTION (LOOP JOIN, FORCE ORDER);

        DELETE job
        FROM @locked AS locked
        JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK) ON job.Id = locked.Id
        WHERE job.LockedBy IS NULL
        OPTION (LOOP JOIN, FORCE ORDER);
        SET @removed = @@ROWCOUNT;

        IF @removed <> (SELECT COUNT(*) FROM @locked)
            THROW 51222, N'a row was out of reach; everything is rolled back', 1;

        COMMIT TRANSACTION;
    END;

    SELECT @removed AS removed;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
