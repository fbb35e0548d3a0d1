-- Purpose       List the queues and tasks that are paused.
-- Precondition  None.
-- Lock order    Locks nothing; locked jobs are not counted.
-- Returns       One row per pause, the oldest first. due is the number of jobs that are due and
--               unclaimed, and would be claimed but for this pause or another.
-- See           SQL.md: nullable now, T-SQL batch, paused lanes, filtered index.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME());

BEGIN TRY
    SELECT pause.Kind AS kind, pause.Name AS name, pause.Reason AS reason,
           pause.PausedBy AS paused_by, pause.PausedAt AS paused_at,
           (
               SELECT COUNT(*)
               FROM reltask.Jobs AS job
                   WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
               WHERE (
                     pause.Kind = N'queue' AND job.Queue = pause.Name
                     OR pause.Kind = N'task' AND job.JobName = pause.Name
                 )
                 AND job.DueAt <= @now
                 AND job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
           ) AS due
    FROM reltask.Pauses AS pause
    ORDER BY pause.PausedAt, pause.Kind, pause.Name;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
