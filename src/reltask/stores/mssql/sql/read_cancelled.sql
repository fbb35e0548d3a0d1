-- Purpose       Read which of a worker's claims are cancelled.
-- Precondition  None.
-- Lock order    Locks nothing if READ_COMMITTED_SNAPSHOT is on; otherwise skips rows that are being
--               written: the next heartbeat says it.
-- Returns       One row per claim whose slot is cancelled: id, fence.
-- See           SQL.md: skip locked, T-SQL batch, JSON batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @worker nvarchar(256) = :worker,
        @holds nvarchar(max) = :holds;

BEGIN TRY
    SELECT job.Id AS id, job.Fence AS fence
    FROM OPENJSON(@holds) WITH (id uniqueidentifier '$.id', fence bigint '$.fence') AS hold
    JOIN reltask.Jobs AS job
        WITH (INDEX (PK_Jobs), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        ON job.Id = hold.id AND job.Fence = hold.fence
    WHERE job.LockedBy = @worker AND job.CancelSlot = job.SlotNo;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
