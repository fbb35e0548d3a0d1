-- Purpose       One page of the recurring jobs, by task and id.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per recurring job.
-- Parameters    :after_task and :after_id are those of the last row of the page before, or null.
-- See           SQL.md: T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @after_task nvarchar(256) = :after_task,
        @after_id uniqueidentifier = :after_id,
        @limit int = :limit;

BEGIN TRY
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
    FROM reltask.Jobs AS job
    WHERE job.Recurring = 1
      AND (
          @after_task IS NULL OR job.JobName > @after_task
          OR (job.JobName = @after_task AND job.Id > @after_id)
      )
    ORDER BY job.JobName, job.Id;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
