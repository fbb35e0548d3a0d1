-- Purpose       Look at the jobs that marks name: count that something came, and make those due
--               that wait for it.
-- Precondition  The mark's time has come, and its job is in the mark's slot. A mark of a slot that
--               has ended is only removed.
-- Lock order    Rows of jobs by id, then their steps, then the marks. Locked jobs are skipped, so
--               the batch never waits for one; their marks stay for the next call.
-- Returns       One row: the number of removed marks.
-- See           SQL.md: nullable now, lock order by id, skip locked, lock first, ended slot, T-SQL
--               batch, primary-key lookup, mark.
--
-- A mark is read twice: without a lock, to find its job, and again when its job is locked. Only a
-- session that has locked the job folds its marks, so each is folded once. Only such a session
-- writes the job's steps, so what is read here decides: a job that is not suspended yet learns of
-- the mark by WakeSeq, and one that is suspended has recorded what it waits for.
--
-- The children that a step waits for are counted down in its row. "Is no sibling left?" would be
-- answered no to each of two children that end at once.
--
-- Only a suspended job becomes due. The time of a backoff, a snooze or a delay is never touched.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @limit int = :limit;
DECLARE @removed int = 0;
DECLARE @seen TABLE (
    At     datetime2(6)     NOT NULL,
    Seq    bigint           NOT NULL,
    JobId  uniqueidentifier NOT NULL,
    SlotNo bigint           NOT NULL,
    PRIMARY KEY (At, Seq)
);
DECLARE @wanted TABLE (Id uniqueidentifier NOT NULL PRIMARY KEY);
DECLARE @locked TABLE (
    Id     uniqueidentifier NOT NULL PRIMARY KEY,
    SlotNo bigint           NOT NULL
);
DECLARE @folded TABLE (
    At     datetime2(6)     NOT NULL,
    Seq    bigint           NOT NULL,
    Kind   nvarchar(16) COLLATE Latin1_General_100_BIN2 NOT NULL,
    JobId  uniqueidentifier NOT NULL,
    SlotNo bigint           NOT NULL,
    Name   nvarchar(420) COLLATE Latin1_General_100_BIN2 NOT NULL,
    PRIMARY KEY (At, Seq)
);
DECLARE @late TABLE (At datetime2(6) NOT NULL, Seq bigint NOT NULL, PRIMARY KEY (At, Seq));
DECLARE @woken TABLE (Id uniqueidentifier NOT NULL PRIMARY KEY);

BEGIN TRY
    INSERT INTO @seen (At, Seq, JobId, SlotNo)
    SELECT TOP (@limit) At, Seq, JobId, SlotNo
    FROM reltask.Marks WITH (INDEX (PK_Marks), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE Queue = N'' AND Task = N'' AND At <= @now
    ORDER BY At, Seq;

    IF EXISTS (SELECT 1 FROM @seen)
    BEGIN
        INSERT INTO @wanted (Id) SELECT DISTINCT JobId FROM @seen;

        BEGIN TRANSACTION;

        UPDATE job
        SET Suspended = job.Suspended
        OUTPUT inserted.Id, inserted.SlotNo INTO @locked (Id, SlotNo)
        FROM @wanted AS wanted
        JOIN reltask.Jobs AS job
            WITH (INDEX (PK_Jobs), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
            ON job.Id = wanted.Id
        OPTION (LOOP JOIN, FORCE ORDER);

        INSERT INTO @folded (At, Seq, Kind, JobId, SlotNo, Name)
        SELECT mark.At, mark.Seq, mark.Kind, mark.JobId, mark.SlotNo, mark.Name
        FROM @seen AS seen
        JOIN @locked AS locked ON locked.Id = seen.JobId AND locked.SlotNo = seen.SlotNo
        JOIN reltask.Marks AS mark
            WITH (INDEX (PK_Marks), READPAST, ROWLOCK, READCOMMITTEDLOCK)
            ON mark.Queue = N'' AND mark.Task = N'' AND mark.At = seen.At AND mark.Seq = seen.Seq
        OPTION (LOOP JOIN, FORCE ORDER);

        -- The slot of a locked job is in its row; of others, only the ledger says that one ended.
        INSERT INTO @late (At, Seq)
        SELECT seen.At, seen.Seq
        FROM @seen AS seen
        LEFT JOIN @locked AS locked ON locked.Id = seen.JobId
        WHERE locked.SlotNo <> seen.SlotNo
           OR (
               locked.Id IS NULL
               AND EXISTS (
                   SELECT 1
                   FROM reltask.Runs AS run
                       WITH (
                           INDEX (UX_Runs_SlotEndsOnce), FORCESEEK, READPAST, ROWLOCK,
                           READCOMMITTEDLOCK
                       )
                   WHERE run.JobId = seen.JobId AND run.SlotNo = seen.SlotNo
                     AND run.Outcome IN (N'succeeded', N'cancelled', N'skipped', N'discarded')
               )
           );

        UPDATE step
        SET Pending = step.Pending - ended.Children
        FROM (
            SELECT JobId, SlotNo, Name, COUNT(*) AS Children
            FROM @folded
            WHERE Kind = N'child'
            GROUP BY JobId, SlotNo, Name
        ) AS ended
        JOIN reltask.Steps AS step WITH (INDEX (PK_Steps), UPDLOCK, ROWLOCK)
            ON step.JobId = ended.JobId AND step.SlotNo = ended.SlotNo AND step.Name = ended.Name
        WHERE step.State = N'waiting'
        OPTION (LOOP JOIN, FORCE ORDER);

        INSERT INTO @woken (Id)
        SELECT step.JobId
        FROM (
            SELECT DISTINCT JobId, SlotNo, Name
            FROM @folded
            WHERE Kind = N'child'
        ) AS ended
        JOIN reltask.Steps AS step WITH (INDEX (PK_Steps))
            ON step.JobId = ended.JobId AND step.SlotNo = ended.SlotNo AND step.Name = ended.Name
        WHERE step.State = N'waiting' AND step.Pending <= 0
        UNION
        SELECT step.JobId
        FROM (
            SELECT DISTINCT JobId, SlotNo, Name
            FROM @folded
            WHERE Kind = N'signal'
        ) AS sent
        JOIN reltask.Steps AS step WITH (INDEX (PK_Steps))
            ON step.JobId = sent.JobId AND step.SlotNo = sent.SlotNo
        WHERE step.State = N'waiting' AND step.Signal = sent.Name
        OPTION (LOOP JOIN, FORCE ORDER);

        UPDATE job
        SET WakeSeq = job.WakeSeq + 1,
            NotBefore = CASE WHEN job.Suspended = 1 AND woken.Id IS NOT NULL AND job.DueAt > @now
                             THEN @now ELSE job.NotBefore END
        FROM (SELECT DISTINCT JobId FROM @folded) AS marked
        LEFT JOIN @woken AS woken ON woken.Id = marked.JobId
        JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
            ON job.Id = marked.JobId
        OPTION (LOOP JOIN, FORCE ORDER);

        -- Those that were counted must go; others may be removed by another session just now.
        DELETE mark
        FROM @folded AS folded
        JOIN reltask.Marks AS mark WITH (INDEX (PK_Marks), UPDLOCK, ROWLOCK)
            ON mark.Queue = N'' AND mark.Task = N'' AND mark.At = folded.At
            AND mark.Seq = folded.Seq
        OPTION (LOOP JOIN, FORCE ORDER);
        SET @removed = @@ROWCOUNT;

        IF @removed <> (SELECT COUNT(*) FROM @folded)
            THROW 51222, N'a row was out of reach; everything is rolled back', 1;

        DELETE mark
        FROM @late AS late
        JOIN reltask.Marks AS mark
            WITH (INDEX (PK_Marks), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
            ON mark.Queue = N'' AND mark.Task = N'' AND mark.At = late.At AND mark.Seq = late.Seq
        OPTION (LOOP JOIN, FORCE ORDER);
        SET @removed = @removed + @@ROWCOUNT;

        COMMIT TRANSACTION;
    END;

    SELECT @removed AS removed;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
