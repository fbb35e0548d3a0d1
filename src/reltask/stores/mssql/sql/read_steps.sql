-- Purpose       Read the recorded steps of a slot, in the order of their start.
-- Precondition  None.
-- Lock order    Locks nothing if READ_COMMITTED_SNAPSHOT is on; otherwise waits for a step that is
--               being written.
-- Returns       One row per step.
-- Parameters    A null :slot_no is the newest slot that has steps.
-- See           SQL.md: T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @job_id uniqueidentifier = :job_id,
        @slot_no bigint = :slot_no;

BEGIN TRY
    IF @slot_no IS NULL
        SELECT @slot_no = MAX(SlotNo) FROM reltask.Steps WHERE JobId = @job_id;

    SELECT JobId AS job_id, SlotNo AS slot_no, Name AS name, Kind AS kind, State AS state,
           Value AS value, Error AS error, Fingerprint AS fingerprint, Attempt AS attempt,
           Fence AS fence, StartedAt AS started_at, RecordedAt AS recorded_at, WakeAt AS wake_at,
           Signal AS signal, Pending AS pending
    FROM reltask.Steps
    WHERE JobId = @job_id AND SlotNo = @slot_no
    ORDER BY StartedAt, RecordedAt, Name;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
