-- Purpose       Read which of these claims the committed rows still show as this worker's.
-- Precondition  None.
-- Lock order    Locks nothing if READ_COMMITTED_SNAPSHOT is on; otherwise waits for a row that is
--               being written.
-- Returns       One row per claim that still holds: id, fence.
-- See           SQL.md: T-SQL batch, JSON batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @worker nvarchar(256) = :worker,
        @holds nvarchar(max) = :holds;

BEGIN TRY
    SELECT job.Id AS id, job.Fence AS fence
    FROM OPENJSON(@holds) WITH (id uniqueidentifier '$.id', fence bigint '$.fence') AS hold
    JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), FORCESEEK)
        ON job.Id = hold.id AND job.Fence = hold.fence
    WHERE job.LockedBy = @worker;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
