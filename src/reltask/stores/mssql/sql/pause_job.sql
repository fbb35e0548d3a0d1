-- Purpose       Prevent a job from being claimed; a running claim goes on.
-- Precondition  Not paused, not dead, and no one-off that is being cancelled: it has to be claimed
--               to end; still the fence that was seen, if one is given.
-- Lock order    One row.
-- Returns       One row with the id, if the job was paused.
-- See           SQL.md: nullable now, T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @id uniqueidentifier = :id,
        @fence bigint = :fence;

BEGIN TRY
    UPDATE job
    SET PausedAt = @now
    FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)
    WHERE job.Id = @id AND job.PausedAt IS NULL AND job.DeadAt IS NULL
      AND (@fence IS NULL OR job.Fence = @fence)
      AND (job.Recurring = 1 OR job.CancelSlot IS NULL OR job.CancelSlot <> job.SlotNo);

    SELECT @id AS id WHERE @@ROWCOUNT > 0;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
