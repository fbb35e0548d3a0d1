-- Purpose       Count the ledger by minute and task, for the minutes that may have changed.
-- Precondition  If a term is given, the lease is still held under it.
-- Lock order    The lease's guard in share mode (see guard_lease.sql), then an application lock
--               that lets one session count at a time (a session that finds it taken counts
--               nothing), then metrics.
-- Returns       One row: the number of minutes written.
-- See           SQL.md: nullable now, leader check, T-SQL batch.
--
--     newest counted minute - 2     counted again, because a commit may have come late
--     …
--     first uncounted run           ten minutes from its own on; the rest at the next call
--
-- Nothing older than about an hour is counted again: rows of that age may have been pruned, and the
-- counts would shrink. A minute whose counts have not changed is not written.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @lease nvarchar(128) = :lease,
        @term bigint = :term;
DECLARE @guard nvarchar(255) = N'reltask.lease ' + @lease,
        @leads int = 0,
        @counts int = -1,
        @epoch datetime2(6) = '2000-01-01',
        @newest datetime2(6),
        @since datetime2(6),
        @uncounted datetime2(6),
        @until datetime2(6);
DECLARE @counted TABLE (
    Minute      datetime2(6) NOT NULL,
    JobName     nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Succeeded   bigint       NOT NULL,
    Failed      bigint       NOT NULL,
    Seconds     float        NOT NULL,
    SecondsMost float        NOT NULL,
    Late        float        NOT NULL,
    LateMost    float        NOT NULL,
    PRIMARY KEY (Minute, JobName)
);

BEGIN TRY
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
        EXEC @counts = sp_getapplock
            @Resource = N'reltask.metrics',
            @LockMode = N'Exclusive',
            @LockOwner = N'Transaction',
            @LockTimeout = 0;

    IF @counts >= 0
    BEGIN
        SELECT @newest = MAX(Minute) FROM reltask.Metrics;
        SET @since = DATEADD(MINUTE, DATEDIFF(MINUTE, @epoch, @now) - 58, @epoch);
        IF DATEADD(MINUTE, -2, @newest) > @since SET @since = DATEADD(MINUTE, -2, @newest);

        SELECT @uncounted = MIN(FinishedAt)
        FROM reltask.Runs WITH (INDEX (IX_Runs_Finished), FORCESEEK)
        WHERE FinishedAt >= @since
          AND (@newest IS NULL OR FinishedAt >= DATEADD(MINUTE, 1, @newest))
          AND Outcome IN (N'succeeded', N'failed', N'lost', N'abandoned') AND ClaimedAt IS NOT NULL;
        SET @until = DATEADD(
            MINUTE, DATEDIFF(MINUTE, @epoch, COALESCE(@uncounted, @now)) + 10,
            @epoch
        );

        -- Counts that have not changed are not written.
        INSERT INTO @counted (
            Minute, JobName, Succeeded, Failed, Seconds, SecondsMost, Late, LateMost
        )
        SELECT counted.Minute, counted.JobName, counted.Succeeded, counted.Failed, counted.Seconds,
               counted.SecondsMost, counted.Late, counted.LateMost
        FROM (
            SELECT run.Minute, run.JobName, SUM(run.Success) AS Succeeded,
                   SUM(1 - run.Success) AS Failed, SUM(run.Seconds) AS Seconds,
                   MAX(run.Seconds) AS SecondsMost, SUM(run.Late) AS Late,
                   MAX(run.Late) AS LateMost
            FROM (
                SELECT DATEADD(MINUTE, DATEDIFF(MINUTE, @epoch, FinishedAt), @epoch) AS Minute,
                       JobName,
                       CASE WHEN Outcome = N'succeeded' THEN 1 ELSE 0 END AS Success,
                       CASE WHEN FinishedAt > ClaimedAt
                            THEN DATEDIFF_BIG(MICROSECOND, ClaimedAt, FinishedAt) / 1e6
                            ELSE 0 END AS Seconds,
                       CASE WHEN ClaimedAt > DueAt
                            THEN DATEDIFF_BIG(MICROSECOND, DueAt, ClaimedAt) / 1e6
                            ELSE 0 END AS Late
                FROM reltask.Runs WITH (INDEX (IX_Runs_Finished), FORCESEEK)
                WHERE FinishedAt >= @since AND FinishedAt < @until
                  AND Outcome IN (N'succeeded', N'failed', N'lost', N'abandoned')
                  AND ClaimedAt IS NOT NULL
            ) AS run
            GROUP BY run.Minute, run.JobName
        ) AS counted
        WHERE NOT EXISTS (
            SELECT 1
            FROM reltask.Metrics AS metric
            WHERE metric.Minute = counted.Minute AND metric.JobName = counted.JobName
              AND metric.Succeeded = counted.Succeeded AND metric.Failed = counted.Failed
        );

        DELETE FROM reltask.Metrics
        WHERE EXISTS (
            SELECT 1
            FROM @counted AS counted
            WHERE counted.Minute = Metrics.Minute AND counted.JobName = Metrics.JobName
        );

        INSERT INTO reltask.Metrics WITH (ROWLOCK) (
            Minute, JobName, Succeeded, Failed, Seconds, SecondsMost, Late, LateMost
        )
        SELECT Minute, JobName, Succeeded, Failed, Seconds, SecondsMost, Late, LateMost
        FROM @counted;
    END;

    COMMIT TRANSACTION;

    SELECT COUNT(DISTINCT Minute) AS minutes FROM @counted;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
