-- Purpose       Read the limits of one job: what of each key is in use, and how many wait for it.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per key. in_use counts ends that no claim has folded yet; tokens is null
--               without a rate; waiting are the due jobs that wait at this key, up to :most.
-- See           SQL.md: nullable now, T-SQL batch, limit.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @id uniqueidentifier = :id,
        @most bigint = :most;
DECLARE @wanted TABLE ([Key] nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL);

BEGIN TRY
    INSERT INTO @wanted ([Key])
    SELECT job.LimitKey
    FROM reltask.Jobs AS job
    WHERE job.Id = @id AND job.LimitKey IS NOT NULL AND job.Limits IS NULL
    UNION ALL
    SELECT CAST(taken.value AS nvarchar(200)) COLLATE Latin1_General_100_BIN2
    FROM reltask.Jobs AS job
    CROSS APPLY OPENJSON(job.Limits) AS taken
    WHERE job.Id = @id AND job.LimitKey IS NOT NULL AND job.Limits IS NOT NULL;

    SELECT wanted.[Key] AS [key], own_limit.Running AS running,
           own_limit.RateCount AS rate_count, own_limit.RatePeriodMs AS rate_period_ms,
           own_limit.Burst AS burst,
           COALESCE(counter.Running, 0) - (
               SELECT COALESCE(SUM(mark.Freed), 0)
               FROM reltask.Marks AS mark
               WHERE mark.Kind = N'limit' AND mark.Name = wanted.[Key]
           ) AS in_use,
           (
               SELECT COUNT(*)
               FROM (
                   SELECT TOP (@most) job.Id
                   FROM reltask.Jobs AS job WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
                   WHERE job.LimitKey = wanted.[Key] AND job.LimitKey IS NOT NULL
                     AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
                     AND job.DueAt <= @now
               ) AS part
           ) AS waiting,
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
    FROM @wanted AS wanted
    JOIN reltask.Limits AS own_limit
      ON own_limit.Name = LEFT(wanted.[Key], CHARINDEX(N':', wanted.[Key] + N':') - 1)
    LEFT JOIN reltask.LimitKeys AS counter ON counter.[Key] = wanted.[Key]
    ORDER BY wanted.[Key];
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
