-- Purpose       which of these jobs the ledger knows: a second look, after an enqueue that was sent again.
-- Precondition  in the transaction of that enqueue, with the ids that it has inserted. None may be known: a job that the
--               first sending brought, and that was claimed and done while the second one looked, would come back to
--               life. Then the transaction must be rolled back, and the next try sees it.
-- Lock order    no locks.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @ids nvarchar(max) = :ids;

BEGIN TRY
    SELECT given.Id AS id
    FROM (SELECT CAST(value AS uniqueidentifier) AS Id FROM OPENJSON(@ids)) AS given
    WHERE EXISTS (SELECT 1 FROM reltask.Runs AS run WHERE run.JobId = given.Id);
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
