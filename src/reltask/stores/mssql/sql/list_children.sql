-- Purpose       List the children of a job: those that have ended, and those that have not.
-- Precondition  None.
-- Lock order    Locks nothing if READ_COMMITTED_SNAPSHOT is on; otherwise waits for a row that is
--               being written.
-- Returns       One row per child of the newest slot that has any, by step and place. task is null
--               if it has ended; then state is its outcome.
-- See           SQL.md: filtered index, T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @job_id uniqueidentifier = :job_id;

BEGIN TRY
    WITH
    children AS (
        SELECT SlotNo, Step, Nth, JobId, CAST(NULL AS nvarchar(256)) AS JobName, Outcome AS State
        FROM reltask.ChildEnds
        WHERE ParentId = @job_id
        UNION ALL
        SELECT ParentSlot, ParentStep, ParentNth, Id, JobName,
               CASE WHEN LockedBy IS NOT NULL THEN N'claimed'
                    WHEN PausedAt IS NOT NULL THEN N'paused'
                    WHEN Suspended = 1 THEN N'suspended'
                    ELSE N'ready' END
        FROM reltask.Jobs
        WHERE ParentId = @job_id AND ParentId IS NOT NULL
    )

    SELECT Step AS step, Nth AS nth, JobId AS job_id, JobName AS task, State AS state
    FROM children
    WHERE SlotNo = (SELECT MAX(SlotNo) FROM children)
    ORDER BY Step, Nth;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
