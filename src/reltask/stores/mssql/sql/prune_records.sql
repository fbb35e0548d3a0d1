-- Purpose       Delete old workers, old metrics and expired lease waiters, up to :limit of each;
--               and signals, ends of children and marks that came too late, of up to :limit slots.
-- Precondition  The worker ended, or the metric's minute lies, longer ago than its age limit; the
--               wait is over. A signal or an end is older than the metrics, or a mark older than an
--               hour, and its job is gone or in a later slot. If a term is given, the lease is
--               still held under it.
-- Lock order    The lease's guard in share mode (see guard_lease.sql), then the others; locked rows
--               are skipped. In a deadlock this session is the victim.
-- Returns       One row: the number of deleted rows.
-- See           SQL.md: nullable now, leader check, skip locked, ended slot, T-SQL batch, duration
--               in minutes.
--
-- The ledger rows of these slots may be gone, so only the job's row says that a slot is over, and a
-- row that is skipped would look like one that is gone. So the slots are nominated with NOLOCK,
-- which waits for nothing, and confirmed by a read of what is committed. That one waits only for a
-- job that another session is just removing.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @lease nvarchar(128) = :lease,
        @term bigint = :term,
        @workers bigint = :workers,
        @metrics bigint = :metrics,
        @limit int = :limit;
DECLARE @guard nvarchar(255) = N'reltask.lease ' + @lease,
        @leads int = 0,
        @removed int = 0,
        @ended_before datetime2(6) =
            DATEADD(
                MICROSECOND, -(@workers % 60000000),
                DATEADD(MINUTE, -(@workers / 60000000), @now)
            ),
        @made_before datetime2(6) =
            DATEADD(
                MICROSECOND, -(@metrics % 60000000),
                DATEADD(MINUTE, -(@metrics / 60000000), @now)
            );
DECLARE @late TABLE (
    JobId uniqueidentifier NOT NULL,
    Slot  bigint           NOT NULL,
    PRIMARY KEY (JobId, Slot)
);

BEGIN TRY
    SET DEADLOCK_PRIORITY LOW;

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
        DELETE TOP (@limit) FROM reltask.Workers WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE COALESCE(StoppedAt, DeadAt) < @ended_before;
        SET @removed = @removed + @@ROWCOUNT;

        DELETE TOP (@limit) FROM reltask.Metrics WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE Minute < @made_before;
        SET @removed = @removed + @@ROWCOUNT;

        DELETE TOP (@limit) FROM reltask.LeaseWaiters WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE WaitingUntil <= @now;
        SET @removed = @removed + @@ROWCOUNT;

        INSERT INTO @late (JobId, Slot)
        SELECT TOP (@limit) slot.JobId, slot.SlotNo
        FROM (
            SELECT JobId, SlotNo
            FROM reltask.Signals WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
            WHERE SentAt < @made_before
            UNION
            SELECT ParentId, SlotNo
            FROM reltask.ChildEnds WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
            WHERE EndedAt < @made_before
            UNION
            SELECT JobId, SlotNo
            FROM reltask.Marks WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
            WHERE Queue = N'' AND Task = N'' AND At < DATEADD(HOUR, -1, @now)
        ) AS slot
        WHERE NOT EXISTS (
            SELECT 1
            FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), FORCESEEK, NOLOCK)
            WHERE job.Id = slot.JobId AND job.SlotNo <= slot.SlotNo
        );

        DELETE FROM @late
        WHERE EXISTS (
            SELECT 1
            FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), FORCESEEK)
            WHERE job.Id = JobId AND job.SlotNo <= Slot
        );

        IF EXISTS (SELECT 1 FROM @late)
        BEGIN
            DELETE signal
            FROM @late AS late
            JOIN reltask.Signals AS signal
                WITH (INDEX (PK_Signals), READPAST, ROWLOCK, READCOMMITTEDLOCK)
                ON signal.JobId = late.JobId AND signal.SlotNo = late.Slot
            OPTION (LOOP JOIN, FORCE ORDER);
            SET @removed = @removed + @@ROWCOUNT;

            DELETE known
            FROM @late AS late
            JOIN reltask.ChildEnds AS known
                WITH (INDEX (PK_ChildEnds), READPAST, ROWLOCK, READCOMMITTEDLOCK)
                ON known.ParentId = late.JobId AND known.SlotNo = late.Slot
            OPTION (LOOP JOIN, FORCE ORDER);
            SET @removed = @removed + @@ROWCOUNT;

            DELETE mark
            FROM @late AS late
            JOIN reltask.Marks AS mark WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
                ON mark.JobId = late.JobId AND mark.SlotNo = late.Slot
            WHERE mark.Queue = N'' AND mark.Task = N'' AND mark.At < DATEADD(HOUR, -1, @now);
            SET @removed = @removed + @@ROWCOUNT;
        END;
    END;

    COMMIT TRANSACTION;

    SELECT @removed AS removed;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
