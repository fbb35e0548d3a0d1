-- Purpose       Find what has been due for :since and is unclaimed, and whether a lock has ended.
-- Precondition  None.
-- Lock order    Locks nothing; locked rows are skipped.
-- Returns       One row: the number of lanes whose first job is overdue, their earliest and latest
--               due time, whether there are marks to fold, and whether a lock has ended.
-- See           SQL.md: nullable now, skip locked, filtered index, T-SQL batch, duration in
--               minutes.
--
-- A lane is one (Isolated, queue, task, priority). The loop goes from one lane to the next with one
-- index seek each.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @since bigint = :since;
DECLARE @overdue datetime2(6) = DATEADD(
            MICROSECOND, -(@since % 60000000),
            DATEADD(MINUTE, -(@since / 60000000), @now)
        ),
        @isolated bit,
        @queue nvarchar(128),
        @task nvarchar(256),
        @priority smallint,
        @due_at datetime2(6),
        @found int = 1,
        @lanes int = 0,
        @oldest datetime2(6),
        @newest datetime2(6),
        @marked bit = 0,
        @expired bit = 0;

BEGIN TRY
    SELECT TOP (1) @isolated = Isolated, @queue = Queue, @task = JobName, @priority = Priority,
           @due_at = DueAt
    FROM reltask.Jobs WITH (INDEX (IX_Jobs_Polling), READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NULL
    ORDER BY Isolated, Queue, JobName, Priority, DueAt;
    SET @found = @@ROWCOUNT;

    WHILE @found > 0
    BEGIN
        IF @due_at <= @overdue AND NOT EXISTS (
            SELECT 1
            FROM reltask.Pauses
            WHERE Kind = N'queue' AND Name = @queue OR Kind = N'task' AND Name = @task
        )
            SELECT @lanes = @lanes + 1,
                   @oldest = CASE WHEN @oldest < @due_at THEN @oldest ELSE @due_at END,
                   @newest = CASE WHEN @newest > @due_at THEN @newest ELSE @due_at END;

        -- One seek per column of the key: a single condition would walk the rest of the lane.
        SELECT TOP (1) @isolated = Isolated, @queue = Queue, @task = JobName, @priority = Priority,
               @due_at = DueAt
        FROM (
            SELECT level.*
            FROM (
                SELECT TOP (1) Isolated, Queue, JobName, Priority, DueAt
                FROM reltask.Jobs
                    WITH (INDEX (IX_Jobs_Polling), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
                WHERE LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NULL
                  AND Isolated = @isolated AND Queue = @queue AND JobName = @task
                  AND Priority > @priority
                ORDER BY Isolated, Queue, JobName, Priority, DueAt
            ) AS level
            UNION ALL
            SELECT task.*
            FROM (
                SELECT TOP (1) Isolated, Queue, JobName, Priority, DueAt
                FROM reltask.Jobs
                    WITH (INDEX (IX_Jobs_Polling), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
                WHERE LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NULL
                  AND Isolated = @isolated AND Queue = @queue AND JobName > @task
                ORDER BY Isolated, Queue, JobName, Priority, DueAt
            ) AS task
            UNION ALL
            SELECT place.*
            FROM (
                SELECT TOP (1) Isolated, Queue, JobName, Priority, DueAt
                FROM reltask.Jobs
                    WITH (INDEX (IX_Jobs_Polling), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
                WHERE LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NULL
                  AND Isolated = @isolated AND Queue > @queue
                ORDER BY Isolated, Queue, JobName, Priority, DueAt
            ) AS place
            UNION ALL
            SELECT kind.*
            FROM (
                SELECT TOP (1) Isolated, Queue, JobName, Priority, DueAt
                FROM reltask.Jobs
                    WITH (INDEX (IX_Jobs_Polling), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
                WHERE LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NULL
                  AND Isolated > @isolated
                ORDER BY Isolated, Queue, JobName, Priority, DueAt
            ) AS kind
        ) AS lane
        ORDER BY Isolated, Queue, JobName, Priority, DueAt;
        SET @found = @@ROWCOUNT;
    END;

    IF EXISTS (
        SELECT 1
        FROM reltask.Marks
            WITH (INDEX (PK_Marks), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE Queue = N'' AND Task IN (N'', N'limit') AND At <= @overdue
    )
        SET @marked = 1;

    IF EXISTS (
        SELECT 1
        FROM reltask.Jobs
            WITH (INDEX (IX_Jobs_Expiring), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        WHERE LockedBy IS NOT NULL AND LockExpiresAt < @now
    )
        SET @expired = 1;

    SELECT @lanes AS lanes, @oldest AS oldest, @newest AS newest, @marked AS marked,
           @expired AS expired;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
