-- Purpose       Find which of these jobs are in the ledger, after a repeated enqueue.
-- Precondition  In the transaction of that enqueue, with the ids that it has inserted. None may be
--               in the ledger: a job of the first sending that was claimed and completed after the
--               snapshot of the second one, and before its insert, would come back to life. If one
--               is, the transaction must be rolled back; the next try sees the ledger row.
-- Lock order    Locks nothing.
-- Returns       One row per job in the ledger: its id.
-- See           SQL.md: lost answer, T-SQL batch, JSON batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @ids nvarchar(max) = :ids;

BEGIN TRY
    SELECT given.Id AS id
    FROM (SELECT CAST(value AS uniqueidentifier) AS Id FROM OPENJSON(@ids)) AS given
    WHERE EXISTS (
        SELECT 1
        FROM reltask.Runs AS run WITH (INDEX (PK_Runs), FORCESEEK)
        WHERE run.JobId = given.Id
    );
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
