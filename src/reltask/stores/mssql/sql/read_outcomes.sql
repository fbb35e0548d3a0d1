-- Purpose       Read what the ledger says about these runs, after an answer was lost.
-- Precondition  None.
-- Lock order    Locks nothing if READ_COMMITTED_SNAPSHOT is on; otherwise waits for a row that is
--               being written.
-- Returns       One row per run in the ledger: id, fence, outcome.
-- See           SQL.md: lost answer, T-SQL batch, JSON batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @holds nvarchar(max) = :holds;

BEGIN TRY
    SELECT run.JobId AS id, run.Fence AS fence, run.Outcome AS outcome
    FROM OPENJSON(@holds) WITH (id uniqueidentifier '$.id', fence bigint '$.fence') AS hold
    JOIN reltask.Runs AS run WITH (INDEX (PK_Runs), FORCESEEK)
        ON run.JobId = hold.id AND run.Fence = hold.fence;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
