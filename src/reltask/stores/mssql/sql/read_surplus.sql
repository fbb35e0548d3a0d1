-- Purpose       the time before which ledger rows are beyond the number to keep; nothing where there are fewer rows.
-- Precondition  none; reads only. Reads as many entries of the index as rows are kept, so ask seldom: what was beyond
--               the number once stays so, because newer rows only become more.
-- Lock order    no locks.

SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @most bigint = :most;
DECLARE @newer bigint = CASE WHEN @most > 1 THEN @most - 1 ELSE 0 END;

BEGIN TRY
    SELECT FinishedAt AS finished_at
    FROM reltask.Runs
    ORDER BY FinishedAt DESC
    OFFSET @newer ROWS FETCH NEXT 1 ROWS ONLY;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
