-- Purpose       Delete the oldest ledger rows: those past the age limit, and those beyond the
--               number to keep; with the row that ended a slot also its steps, its signals and the
--               ends of its children.
-- Precondition  Older than an hour, whatever was asked for. If a term is given, the lease is still
--               held under it.
-- Lock order    The lease's guard in share mode (see guard_lease.sql), then ledger rows, steps,
--               ends of children, signals; locked rows are skipped. Another session prunes such
--               ledger rows; a signal or an end that comes so late is left to prune_records.sql. In
--               a deadlock this session is the victim.
-- Returns       One row: the number of deleted rows.
-- Parameters    :surplus_before is from read_surplus.sql, or null.
-- See           SQL.md: nullable now, leader check, skip locked, T-SQL batch, duration in minutes.
--
-- The oldest rows go first, so that what remains of a job's history has no gaps. A batch takes at
-- most about a hundred steps per row, so that slots with very many of them do not make it too long.
-- Only a row that ended its slot has a number of steps: a suspended function keeps its steps,
-- however old the rows of its earlier runs are. A slot without steps may have been sent signals.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @lease nvarchar(128) = :lease,
        @term bigint = :term,
        @older_than bigint = :older_than,
        @surplus_before datetime2(6) = :surplus_before,
        @limit int = :limit;
DECLARE @before datetime2(6) =
            DATEADD(
                MICROSECOND, -(@older_than % 60000000),
                DATEADD(MINUTE, -(@older_than / 60000000), @now)
            ),
        @guard nvarchar(255) = N'reltask.lease ' + @lease,
        @leads int = 0,
        @removed int = 0;
DECLARE @old TABLE (
    JobId  uniqueidentifier NOT NULL,
    Fence  bigint           NOT NULL,
    SlotNo bigint           NOT NULL,
    Steps  int              NULL,
    Ends   bit              NOT NULL,
    PRIMARY KEY (JobId, Fence)
);

BEGIN TRY
    SET DEADLOCK_PRIORITY LOW;
    IF @surplus_before > @before SET @before = @surplus_before;
    IF @before > DATEADD(HOUR, -1, @now) SET @before = DATEADD(HOUR, -1, @now);

    BEGIN TRANSACTION;

    IF @term IS NOT NULL
    BEGIN
        EXEC @leads = sp_getapplock
            @Resource = @guard,
            @LockMode = N'Shared',
            @LockOwner = N'Transaction',
            @LockTimeout = 5000;
        IF NOT EXISTS (
            SELECT 1
            FROM reltask.Leases WITH (INDEX (PK_Leases), FORCESEEK, READCOMMITTEDLOCK)
            WHERE Name = @lease AND Term = @term AND Holder IS NOT NULL
        )
            SET @leads = -1;
    END;

    IF @leads >= 0
    BEGIN
        INSERT INTO @old (JobId, Fence, SlotNo, Steps, Ends)
        SELECT counted.JobId, counted.Fence, counted.SlotNo, counted.Steps,
               CASE WHEN counted.Outcome IN (N'succeeded', N'cancelled', N'skipped', N'discarded')
                    THEN 1 ELSE 0 END
        FROM (
            SELECT oldest.JobId, oldest.Fence, oldest.SlotNo, oldest.Steps, oldest.Outcome,
                   SUM(CAST(COALESCE(oldest.Steps, 0) AS bigint)) OVER (
                       ORDER BY oldest.FinishedAt, oldest.JobId, oldest.Fence
                       ROWS UNBOUNDED PRECEDING
                   ) - COALESCE(oldest.Steps, 0) AS StepsBefore
            FROM (
                SELECT TOP (@limit) JobId, Fence, SlotNo, Steps, Outcome, FinishedAt
                FROM reltask.Runs
                    WITH (
                        INDEX (IX_Runs_Finished), FORCESEEK, READPAST, UPDLOCK, ROWLOCK,
                        READCOMMITTEDLOCK
                    )
                WHERE FinishedAt < @before
                ORDER BY FinishedAt
            ) AS oldest
        ) AS counted
        WHERE counted.StepsBefore < 100 * CAST(@limit AS bigint);

        IF EXISTS (SELECT 1 FROM @old WHERE Steps IS NOT NULL)
        BEGIN
            DELETE step
            FROM @old AS old
            JOIN reltask.Steps AS step
                WITH (INDEX (PK_Steps), READPAST, ROWLOCK, READCOMMITTEDLOCK)
                ON step.JobId = old.JobId AND step.SlotNo = old.SlotNo
            WHERE old.Steps IS NOT NULL
            OPTION (LOOP JOIN, FORCE ORDER);

            DELETE known
            FROM @old AS old
            JOIN reltask.ChildEnds AS known
                WITH (INDEX (PK_ChildEnds), READPAST, ROWLOCK, READCOMMITTEDLOCK)
                ON known.ParentId = old.JobId AND known.SlotNo = old.SlotNo
            WHERE old.Steps IS NOT NULL
            OPTION (LOOP JOIN, FORCE ORDER);
        END;

        DELETE signal
        FROM @old AS old
        JOIN reltask.Signals AS signal
            WITH (INDEX (PK_Signals), READPAST, ROWLOCK, READCOMMITTEDLOCK)
            ON signal.JobId = old.JobId AND signal.SlotNo = old.SlotNo
        WHERE old.Ends = 1
        OPTION (LOOP JOIN, FORCE ORDER);

        DELETE run
        FROM @old AS old
        JOIN reltask.Runs AS run WITH (INDEX (PK_Runs), READPAST, ROWLOCK, READCOMMITTEDLOCK)
            ON run.JobId = old.JobId AND run.Fence = old.Fence
        OPTION (LOOP JOIN, FORCE ORDER);
        SET @removed = @@ROWCOUNT;
    END;

    COMMIT TRANSACTION;

    SELECT @removed AS removed;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
