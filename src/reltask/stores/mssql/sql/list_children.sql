-- Purpose       List the children of a job: those that have ended, and those that have not.
-- Precondition  None.
-- Lock order    Locks nothing if READ_COMMITTED_SNAPSHOT is on; otherwise waits for a row that is
--               being written.
-- Returns       One row per child, by slot, step and place. If it has ended, task is null, and
--               state is its outcome.
-- See           SQL.md: filtered index, T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @job_id uniqueidentifier = :job_id;

BEGIN TRY
    SELECT child.Step AS step, child.Nth AS nth, child.JobId AS job_id, child.JobName AS task,
           child.State AS state
    FROM (
        SELECT SlotNo, Step, Nth, JobId, CAST(NULL AS nvarchar(256)) AS JobName, Outcome AS State
        FROM reltask.ChildEnds
        WHERE ParentId = @job_id
        UNION ALL
        SELECT ParentSlot, ParentStep, ParentNth, Id, JobName,
               CASE WHEN LockedBy IS NOT NULL THEN N'claimed'
                    WHEN PausedAt IS NOT NULL THEN N'paused'
                    WHEN Suspended = 1 THEN N'suspended'
                    ELSE N'ready' END
        FROM reltask.Jobs WITH (INDEX (IX_Jobs_Children), FORCESEEK)
        WHERE ParentId = @job_id AND ParentId IS NOT NULL
    ) AS child
    ORDER BY child.SlotNo, child.Step, child.Nth;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
