-- Purpose       List jobs by due time.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per job.
-- See           SQL.md: T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @state nvarchar(16) = :state,
        @task nvarchar(256) = :task,
        @limit int = :limit;

BEGIN TRY
    SELECT TOP (@limit)
           Id AS id, JobName AS task, JobKey AS [key], Queue AS queue, Priority AS priority,
           CASE WHEN DeadAt IS NOT NULL THEN N'dead'
                WHEN LockedBy IS NOT NULL THEN N'claimed'
                WHEN PausedAt IS NOT NULL THEN N'paused'
                WHEN Suspended = 1 THEN N'suspended'
                ELSE N'ready' END AS state,
           CASE WHEN Recurring = 0 OR Schedule IS NOT NULL THEN Schedule
                WHEN IntervalMs IS NOT NULL THEN CONCAT(N'{"every":"', IntervalMs, N'ms"}')
                ELSE CONCAT(N'{"every":"', IntervalMinutes, N'm"}') END AS schedule,
           SlotNo AS slot_no, NextRunTime AS next_run_time, DueAt AS due_at,
           LastRunTime AS last_run_time, Attempt AS attempt, MaxAttempts AS max_attempts,
           Fence AS fence, LockedBy AS locked_by, LockedAt AS locked_at,
           HeartbeatAt AS heartbeat_at, LockExpiresAt AS lock_expires_at,
           Progress AS progress, Isolated AS isolated, CreatedAt AS created_at,
           Steps AS steps, ParentId AS parent_id
    FROM reltask.Jobs
    WHERE (
        @state IS NULL
        OR @state = CASE WHEN DeadAt IS NOT NULL THEN N'dead'
                         WHEN LockedBy IS NOT NULL THEN N'claimed'
                         WHEN PausedAt IS NOT NULL THEN N'paused'
                         WHEN Suspended = 1 THEN N'suspended'
                         ELSE N'ready' END
    )
      AND (@task IS NULL OR JobName = @task)
    ORDER BY DueAt, Id;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
