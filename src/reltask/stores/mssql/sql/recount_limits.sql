-- Purpose       Heal limits: count the places again, mark keys that have room and due jobs but no
--               mark, and forget keys that are not in use.
-- Precondition  The key's row is locked while its jobs and marks are counted: only claims add to
--               them, and those lock it, too. A count that an end changes meanwhile is counted
--               twice, and left alone if the two differ.
-- Lock order    Keys in order, one in each transaction.
-- Returns       One row: the number of keys that were counted or marked.
-- See           SQL.md: nullable now, T-SQL batch, limit.
--
-- Nothing here is needed while the protocol holds. It heals what a restored backup or a hand-made
-- change has broken.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @limit int = :limit;
DECLARE @healed int = 0,
        @key nvarchar(200),
        @running int,
        @first int,
        @second int;
DECLARE @held TABLE (
    [Key]  nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY,
    Places int NOT NULL
);
DECLARE @wrong TABLE ([Key] nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY);

BEGIN TRY
    INSERT INTO @held ([Key], Places)
    SELECT held.[Key], SUM(held.Places)
    FROM (
        SELECT job.LimitKey AS [Key], 1 AS Places
        FROM reltask.Jobs AS job WITH (INDEX (IX_Jobs_Holding), READCOMMITTEDLOCK)
        WHERE job.LockedBy IS NOT NULL AND job.LimitKey IS NOT NULL AND job.Limits IS NULL
        UNION ALL
        SELECT CAST(taken.value AS nvarchar(200)) COLLATE Latin1_General_100_BIN2, 1
        FROM reltask.Jobs AS job WITH (INDEX (IX_Jobs_Holding), READCOMMITTEDLOCK)
        CROSS APPLY OPENJSON(job.Limits) AS taken
        WHERE job.LockedBy IS NOT NULL AND job.LimitKey IS NOT NULL AND job.Limits IS NOT NULL
        UNION ALL
        SELECT mark.Name, mark.Freed
        FROM reltask.Marks AS mark WITH (READCOMMITTEDLOCK)
        WHERE mark.Queue = N'' AND mark.Task = N'limit' AND mark.Freed <> 0
    ) AS held
    GROUP BY held.[Key];

    INSERT INTO @wrong ([Key])
    SELECT TOP (@limit) counter.[Key]
    FROM reltask.LimitKeys AS counter
    LEFT JOIN @held AS held ON held.[Key] = counter.[Key]
    WHERE counter.Running <> COALESCE(held.Places, 0)
    ORDER BY counter.[Key];

    INSERT INTO reltask.LimitKeys WITH (ROWLOCK) ([Key], Name, Running, Tokens, RefilledAt)
    SELECT held.[Key], own_limit.Name, held.Places, 0, @now
    FROM @held AS held
    JOIN reltask.Limits AS own_limit
        ON own_limit.Name = LEFT(held.[Key], CHARINDEX(N':', held.[Key] + N':') - 1)
    WHERE NOT EXISTS (
        SELECT 1
        FROM reltask.LimitKeys AS counter WITH (UPDLOCK, HOLDLOCK)
        WHERE counter.[Key] = held.[Key]
    );
    SET @healed = @@ROWCOUNT;

    WHILE EXISTS (SELECT 1 FROM @wrong)
    BEGIN
        SELECT TOP (1) @key = [Key] FROM @wrong ORDER BY [Key];
        DELETE FROM @wrong WHERE [Key] = @key;

        BEGIN TRANSACTION;

        UPDATE reltask.LimitKeys WITH (ROWLOCK) SET Seq = Seq + 1 WHERE [Key] = @key;
        SELECT @running = Running
        FROM reltask.LimitKeys WITH (READCOMMITTEDLOCK)
        WHERE [Key] = @key;

        SELECT @first = COALESCE(SUM(held.Places), 0)
        FROM (
            SELECT 1 AS Places
            FROM reltask.Jobs AS job WITH (INDEX (IX_Jobs_Holding), READCOMMITTEDLOCK)
            WHERE job.LockedBy IS NOT NULL AND job.LimitKey IS NOT NULL
              AND (
                  (job.Limits IS NULL AND job.LimitKey = @key)
                  OR EXISTS (
                      SELECT 1
                      FROM OPENJSON(job.Limits) AS taken
                      WHERE taken.value COLLATE Latin1_General_100_BIN2 = @key
                  )
              )
            UNION ALL
            SELECT mark.Freed
            FROM reltask.Marks AS mark WITH (READCOMMITTEDLOCK)
            WHERE mark.Name = @key AND mark.Kind = N'limit' AND mark.Freed <> 0
        ) AS held;
        SELECT @second = COALESCE(SUM(held.Places), 0)
        FROM (
            SELECT mark.Freed AS Places
            FROM reltask.Marks AS mark WITH (READCOMMITTEDLOCK)
            WHERE mark.Name = @key AND mark.Kind = N'limit' AND mark.Freed <> 0
            UNION ALL
            SELECT 1
            FROM reltask.Jobs AS job WITH (INDEX (IX_Jobs_Holding), READCOMMITTEDLOCK)
            WHERE job.LockedBy IS NOT NULL AND job.LimitKey IS NOT NULL
              AND (
                  (job.Limits IS NULL AND job.LimitKey = @key)
                  OR EXISTS (
                      SELECT 1
                      FROM OPENJSON(job.Limits) AS taken
                      WHERE taken.value COLLATE Latin1_General_100_BIN2 = @key
                  )
              )
        ) AS held;

        IF @first = @second AND @first <> @running
        BEGIN
            UPDATE reltask.LimitKeys WITH (ROWLOCK) SET Running = @first WHERE [Key] = @key;
            INSERT INTO reltask.Marks WITH (ROWLOCK) (Task, At, Kind, Name)
            VALUES (N'limit', @now, N'limit', @key);
            SET @healed = @healed + 1;
        END;

        COMMIT TRANSACTION;
    END;

    INSERT INTO reltask.Marks WITH (ROWLOCK) (Task, At, Kind, Name)
    SELECT TOP (@limit) N'limit', @now, N'limit', waiting.[Key]
    FROM (
        SELECT DISTINCT job.LimitKey AS [Key]
        FROM reltask.Jobs AS job
            WITH (INDEX (IX_Jobs_Limited), READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
          AND job.LimitKey IS NOT NULL AND job.DueAt <= @now
    ) AS waiting
    JOIN reltask.Limits AS own_limit
        ON own_limit.Name = LEFT(waiting.[Key], CHARINDEX(N':', waiting.[Key] + N':') - 1)
    LEFT JOIN reltask.LimitKeys AS counter ON counter.[Key] = waiting.[Key]
    WHERE (own_limit.Running IS NULL OR own_limit.Running > COALESCE(counter.Running, 0))
      AND NOT EXISTS (
          SELECT 1
          FROM reltask.Marks AS mark WITH (READCOMMITTEDLOCK)
          WHERE mark.Name = waiting.[Key] AND mark.Kind = N'limit'
            AND (mark.At <= @now OR own_limit.RateCount IS NOT NULL AND mark.Queue = N'')
      );
    SET @healed = @healed + @@ROWCOUNT;

    DELETE counter
    FROM reltask.LimitKeys AS counter WITH (READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
    JOIN reltask.Limits AS own_limit ON own_limit.Name = counter.Name
    WHERE counter.Running = 0 AND counter.[Key] <> counter.Name
      AND counter.RefilledAt < DATEADD(HOUR, -1, @now)
      AND (
          own_limit.RateCount IS NULL
          OR DATEDIFF_BIG(MILLISECOND, counter.RefilledAt, @now)
              > CAST(own_limit.RatePeriodMs AS float) * own_limit.Burst / own_limit.RateCount
      )
      AND NOT EXISTS (
          SELECT 1
          FROM reltask.Marks AS mark WITH (READCOMMITTEDLOCK)
          WHERE mark.Name = counter.[Key] AND mark.Kind = N'limit'
      );

    SELECT @healed AS healed;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
