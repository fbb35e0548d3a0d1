-- Purpose       List the limits, and how much of each is in use.
-- Precondition  None. Reads every claimed job that has a limit, and up to :most that are due.
-- Lock order    Locks nothing.
-- Returns       One row per limit, by name. tokens are those of a limit with a single key.
-- See           SQL.md: nullable now, T-SQL batch, limit.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @most bigint = :most;
DECLARE @jobs TABLE (
    LimitKey  nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Limits    nvarchar(max) NULL,
    IsClaimed int           NOT NULL
);
DECLARE @used TABLE (
    [Key]   nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
    InUse   int NOT NULL,
    Waiting int NOT NULL
);

BEGIN TRY
    INSERT INTO @jobs (LimitKey, Limits, IsClaimed)
    SELECT job.LimitKey, job.Limits, 1
    FROM reltask.Jobs AS job WITH (INDEX (IX_Jobs_Holding), READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE job.LockedBy IS NOT NULL AND job.LimitKey IS NOT NULL;

    INSERT INTO @jobs (LimitKey, Limits, IsClaimed)
    SELECT TOP (@most) job.LimitKey, job.Limits, 0
    FROM reltask.Jobs AS job WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
      AND job.LimitKey IS NOT NULL AND job.DueAt <= @now;

    INSERT INTO @used ([Key], InUse, Waiting)
    SELECT LimitKey, IsClaimed, 1 - IsClaimed
    FROM @jobs
    WHERE Limits IS NULL
    UNION ALL
    SELECT CAST(wanted.value AS nvarchar(200)) COLLATE Latin1_General_100_BIN2,
           job.IsClaimed, 1 - job.IsClaimed
    FROM @jobs AS job
    CROSS APPLY OPENJSON(job.Limits) AS wanted
    WHERE job.Limits IS NOT NULL;

    SELECT own_limit.Name AS name, own_limit.Running AS running, own_limit.RateCount AS rate_count,
           own_limit.RatePeriodMs AS rate_period_ms, own_limit.Burst AS burst,
           (
               SELECT COUNT(*)
               FROM reltask.LimitKeys AS counter
               WHERE counter.Name = own_limit.Name
           ) AS keys,
           COALESCE(used.InUse, 0) AS in_use, COALESCE(used.Waiting, 0) AS waiting,
           CASE WHEN own_limit.RateCount IS NULL THEN NULL
                WHEN counter.[Key] IS NULL AND EXISTS (
                    SELECT 1 FROM reltask.LimitKeys AS other WHERE other.Name = own_limit.Name
                ) THEN NULL
                WHEN counter.[Key] IS NULL OR counter.RefilledAt < DATEADD(YEAR, -1, @now)
                  OR counter.Tokens + DATEDIFF_BIG(MICROSECOND, counter.RefilledAt, @now) / 1000.0
                      * own_limit.RateCount / own_limit.RatePeriodMs >= own_limit.Burst
                THEN CAST(own_limit.Burst AS float)
                WHEN counter.RefilledAt >= @now THEN counter.Tokens
                ELSE counter.Tokens
                    + CAST(DATEDIFF_BIG(MICROSECOND, counter.RefilledAt, @now) AS float) / 1000.0
                    * own_limit.RateCount / own_limit.RatePeriodMs
           END AS tokens
    FROM reltask.Limits AS own_limit
    LEFT JOIN reltask.LimitKeys AS counter ON counter.[Key] = own_limit.Name
    LEFT JOIN (
        SELECT LEFT([Key], CHARINDEX(N':', [Key] + N':') - 1) AS Name, SUM(InUse) AS InUse,
               SUM(Waiting) AS Waiting
        FROM @used
        GROUP BY LEFT([Key], CHARINDEX(N':', [Key] + N':') - 1)
    ) AS used ON used.Name = own_limit.Name
    ORDER BY own_limit.Name;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
