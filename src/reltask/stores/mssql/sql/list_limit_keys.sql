-- Purpose       List the keys of a limit: those with the most waiting jobs first.
-- Precondition  None. Reads every job that has a limit.
-- Lock order    Locks nothing.
-- Returns       One row per key that is counted or waited for. tokens is null without a rate.
-- See           SQL.md: nullable now, T-SQL batch, limit.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @name nvarchar(100) = :name,
        @limit int = :limit;
DECLARE @used TABLE (
    [Key]   nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
    InUse   int NOT NULL,
    Waiting int NOT NULL
);

BEGIN TRY
    INSERT INTO @used ([Key], InUse, Waiting)
    SELECT job.LimitKey, CASE WHEN job.LockedBy IS NOT NULL THEN 1 ELSE 0 END,
           CASE WHEN job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
                  AND job.DueAt <= @now THEN 1 ELSE 0 END
    FROM reltask.Jobs AS job WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE job.LimitKey IS NOT NULL AND job.Limits IS NULL
    UNION ALL
    SELECT CAST(wanted.value AS nvarchar(200)) COLLATE Latin1_General_100_BIN2,
           CASE WHEN job.LockedBy IS NOT NULL THEN 1 ELSE 0 END,
           CASE WHEN job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
                  AND job.DueAt <= @now THEN 1 ELSE 0 END
    FROM reltask.Jobs AS job WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
    CROSS APPLY OPENJSON(job.Limits) AS wanted
    WHERE job.LimitKey IS NOT NULL AND job.Limits IS NOT NULL
    UNION ALL
    SELECT counter.[Key], 0, 0
    FROM reltask.LimitKeys AS counter
    WHERE counter.Name = @name;

    SELECT TOP (@limit) used.[Key] AS [key], used.InUse AS in_use, used.Waiting AS waiting,
           CASE WHEN own_limit.RateCount IS NULL THEN NULL
                WHEN counter.[Key] IS NULL OR counter.RefilledAt < DATEADD(YEAR, -1, @now)
                  OR counter.Tokens + DATEDIFF_BIG(MICROSECOND, counter.RefilledAt, @now) / 1000.0
                      * own_limit.RateCount / own_limit.RatePeriodMs >= own_limit.Burst
                THEN CAST(own_limit.Burst AS float)
                WHEN counter.RefilledAt >= @now THEN counter.Tokens
                ELSE counter.Tokens
                    + CAST(DATEDIFF_BIG(MICROSECOND, counter.RefilledAt, @now) AS float) / 1000.0
                    * own_limit.RateCount / own_limit.RatePeriodMs
           END AS tokens
    FROM (
        SELECT [Key], SUM(InUse) AS InUse, SUM(Waiting) AS Waiting
        FROM @used
        WHERE LEFT([Key], CHARINDEX(N':', [Key] + N':') - 1) = @name
        GROUP BY [Key]
    ) AS used
    LEFT JOIN reltask.LimitKeys AS counter ON counter.[Key] = used.[Key]
    LEFT JOIN reltask.Limits AS own_limit ON own_limit.Name = @name
    ORDER BY used.Waiting DESC, used.InUse DESC, used.[Key];
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
