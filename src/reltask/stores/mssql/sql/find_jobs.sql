-- Purpose       Find the jobs that have a key, of any task.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per job, by task.
-- See           SQL.md: T-SQL batch, filtered index.
--
-- The index of keys begins with the task. The loop goes from one task to the next, with one index
-- seek each.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @key nvarchar(256) = :key,
        @limit int = :limit,
        @task nvarchar(256) = N'';
DECLARE @tasks TABLE (JobName nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);

BEGIN TRY
    WHILE @task IS NOT NULL
    BEGIN
        SELECT @task = MIN(JobName)
        FROM reltask.Jobs
        WHERE JobName > @task AND JobKey IS NOT NULL;

        INSERT INTO @tasks (JobName)
        SELECT @task WHERE @task IS NOT NULL;
    END;

    SELECT TOP (@limit)
           job.Id AS id, job.JobName AS task, job.JobKey AS [key], job.Queue AS queue,
           job.Priority AS priority,
           CASE WHEN job.DeadAt IS NOT NULL THEN N'dead'
                WHEN job.LockedBy IS NOT NULL THEN N'claimed'
                WHEN job.PausedAt IS NOT NULL THEN N'paused'
                WHEN job.Suspended = 1 THEN N'suspended'
                ELSE N'ready' END AS state,
           CASE WHEN job.Recurring = 0 OR job.Schedule IS NOT NULL THEN job.Schedule
                WHEN job.IntervalMs IS NOT NULL
                THEN CONCAT(N'{"every":"', job.IntervalMs, N'ms"}')
                ELSE CONCAT(N'{"every":"', job.IntervalMinutes, N'm"}') END AS schedule,
           job.SlotNo AS slot_no, job.NextRunTime AS next_run_time, job.DueAt AS due_at,
           job.LastRunTime AS last_run_time, job.Attempt AS attempt,
           job.MaxAttempts AS max_attempts, job.Fence AS fence, job.LockedBy AS locked_by,
           job.LockedAt AS locked_at, job.HeartbeatAt AS heartbeat_at,
           job.LockExpiresAt AS lock_expires_at, job.Progress AS progress,
           job.Isolated AS isolated, job.CreatedAt AS created_at, job.Steps AS steps,
           job.ParentId AS parent_id
    FROM @tasks AS named
    JOIN reltask.Jobs AS job ON job.JobName = named.JobName AND job.JobKey = @key
    ORDER BY job.JobName;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
