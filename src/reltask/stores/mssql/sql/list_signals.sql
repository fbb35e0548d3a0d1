-- Purpose       List the signals of a job, oldest first, consumed ones too.
-- Precondition  None.
-- Lock order    Locks nothing if READ_COMMITTED_SNAPSHOT is on; otherwise waits for a signal that
--               is being written.
-- Returns       One row per signal.
-- See           SQL.md: T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @job_id uniqueidentifier = :job_id;

BEGIN TRY
    SELECT JobId AS job_id, SlotNo AS slot_no, Name AS name, Id AS id, Value AS value,
           SentAt AS sent_at, ConsumedBy AS consumed_by
    FROM reltask.Signals
    WHERE JobId = @job_id
    ORDER BY SlotNo, Seq;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
