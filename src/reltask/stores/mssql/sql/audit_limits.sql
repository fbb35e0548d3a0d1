-- Purpose       Find keys of limits whose count is not that of their claimed jobs, and keys with
--               room and due jobs that no mark will find.
-- Precondition  None. Reads every claimed or due job that has a limit, and every key.
-- Lock order    Locks nothing for long: committed rows, read one after the other. A key that is
--               claimed or freed meanwhile may look wrong; the caller asks twice.
-- Returns       One row per key that is wrong: the places that are counted, less marks that are not
--               folded yet, the claimed jobs, and whether due jobs are stranded.
-- See           SQL.md: nullable now, T-SQL batch, limit.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @limit int = :limit;
DECLARE @seen TABLE (
    [Key]    nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Counted  int NOT NULL,
    Claimed  int NOT NULL,
    Stranded int NOT NULL
);

BEGIN TRY
    INSERT INTO @seen ([Key], Counted, Claimed, Stranded)
    SELECT counter.[Key], counter.Running, 0, 0
    FROM reltask.LimitKeys AS counter WITH (READCOMMITTEDLOCK)
    UNION ALL
    SELECT mark.Name, -mark.Freed, 0, 0
    FROM reltask.Marks AS mark WITH (READCOMMITTEDLOCK)
    WHERE mark.Queue = N'' AND mark.Task = N'limit' AND mark.Freed <> 0
    UNION ALL
    SELECT job.LimitKey, 0, 1, 0
    FROM reltask.Jobs AS job WITH (READCOMMITTEDLOCK)
    WHERE job.LockedBy IS NOT NULL AND job.LimitKey IS NOT NULL AND job.Limits IS NULL
    UNION ALL
    SELECT CAST(taken.value AS nvarchar(200)) COLLATE Latin1_General_100_BIN2, 0, 1, 0
    FROM reltask.Jobs AS job WITH (READCOMMITTEDLOCK)
    CROSS APPLY OPENJSON(job.Limits) AS taken
    WHERE job.LockedBy IS NOT NULL AND job.LimitKey IS NOT NULL AND job.Limits IS NOT NULL
    UNION ALL
    -- A mark for all workers may be as late as the next token, or a second.
    SELECT waiting.[Key], 0, 0, 1
    FROM (
        SELECT due.[Key], counter.Running,
               own_limit.Running AS Most,
               DATEADD(
                   MILLISECOND, COALESCE(own_limit.RatePeriodMs / own_limit.RateCount, 0) % 60000,
                   DATEADD(
                       MINUTE, COALESCE(own_limit.RatePeriodMs / own_limit.RateCount, 0) / 60000,
                       DATEADD(SECOND, 1, @now)
                   )
               ) AS LookAt
        FROM (
            SELECT DISTINCT job.LimitKey AS [Key]
            FROM reltask.Jobs AS job WITH (READCOMMITTEDLOCK)
            WHERE job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
              AND job.LimitKey IS NOT NULL AND job.DueAt <= @now
        ) AS due
        JOIN reltask.Limits AS own_limit WITH (READCOMMITTEDLOCK)
            ON own_limit.Name = LEFT(due.[Key], CHARINDEX(N':', due.[Key] + N':') - 1)
        LEFT JOIN reltask.LimitKeys AS counter WITH (READCOMMITTEDLOCK)
            ON counter.[Key] = due.[Key]
    ) AS waiting
    WHERE (waiting.Most IS NULL OR waiting.Most > COALESCE(waiting.Running, 0))
      AND NOT EXISTS (
          SELECT 1
          FROM reltask.Marks AS mark WITH (READCOMMITTEDLOCK)
          WHERE mark.Kind = N'limit' AND mark.Name = waiting.[Key] AND mark.Queue = N''
            AND mark.At <= waiting.LookAt
      )
      AND EXISTS (
          SELECT 1
          FROM reltask.Jobs AS job WITH (READCOMMITTEDLOCK)
          WHERE job.LimitKey = waiting.[Key] AND job.DueAt <= @now
            AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
            AND NOT EXISTS (
                SELECT 1
                FROM reltask.Marks AS mark WITH (READCOMMITTEDLOCK)
                WHERE mark.Kind = N'limit' AND mark.Name = waiting.[Key]
                  AND mark.Queue = job.Queue AND mark.Task = job.JobName
                  AND mark.At <= waiting.LookAt
            )
      );

    SELECT TOP (@limit) [Key] AS [key], SUM(Counted) AS counted, SUM(Claimed) AS claimed,
           MAX(Stranded) AS stranded
    FROM @seen
    GROUP BY [Key]
    HAVING SUM(Counted) <> SUM(Claimed) OR MAX(Stranded) = 1
    ORDER BY [Key];
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
