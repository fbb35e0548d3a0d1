-- Purpose       Find keys of limits whose count is not that of their claimed jobs.
-- Precondition  None. Reads every claimed job that has a limit, and every key.
-- Lock order    Locks nothing for long: committed rows, read one after the other. A key that is
--               claimed or freed meanwhile may look wrong; the caller asks twice.
-- Returns       One row per key that is wrong: the places that are counted, less marks that are not
--               folded yet, and the claimed jobs.
-- See           SQL.md: T-SQL batch, limit.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @limit int = :limit;
DECLARE @seen TABLE (
    [Key]   nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Counted int NOT NULL,
    Claimed int NOT NULL
);

BEGIN TRY
    INSERT INTO @seen ([Key], Counted, Claimed)
    SELECT counter.[Key], counter.Running, 0
    FROM reltask.LimitKeys AS counter WITH (READCOMMITTEDLOCK)
    UNION ALL
    SELECT mark.Name, -mark.Freed, 0
    FROM reltask.Marks AS mark WITH (READCOMMITTEDLOCK)
    WHERE mark.Queue = N'' AND mark.Task = N'limit' AND mark.Freed <> 0
    UNION ALL
    SELECT job.LimitKey, 0, 1
    FROM reltask.Jobs AS job WITH (READCOMMITTEDLOCK)
    WHERE job.LockedBy IS NOT NULL AND job.LimitKey IS NOT NULL AND job.Limits IS NULL
    UNION ALL
    SELECT CAST(taken.value AS nvarchar(200)) COLLATE Latin1_General_100_BIN2, 0, 1
    FROM reltask.Jobs AS job WITH (READCOMMITTEDLOCK)
    CROSS APPLY OPENJSON(job.Limits) AS taken
    WHERE job.LockedBy IS NOT NULL AND job.LimitKey IS NOT NULL AND job.Limits IS NOT NULL;

    SELECT TOP (@limit) [Key] AS [key], SUM(Counted) AS counted, SUM(Claimed) AS claimed
    FROM @seen
    GROUP BY [Key]
    HAVING SUM(Counted) <> SUM(Claimed)
    ORDER BY [Key];
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
