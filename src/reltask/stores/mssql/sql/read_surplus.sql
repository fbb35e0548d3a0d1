-- Purpose       Find the time before which ledger rows exceed the number to keep.
-- Precondition  None. Reads :most entries of a narrow index, so it is called seldom: rows that
--               exceed the number once always do, because only newer rows are added.
-- Lock order    Locks nothing.
-- Returns       One row, or none if there are fewer than :most rows.
-- See           SQL.md: T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @most bigint = :most;
DECLARE @newer bigint = CASE WHEN @most > 1 THEN @most - 1 ELSE 0 END;

BEGIN TRY
    SELECT FinishedAt AS finished_at
    FROM reltask.Runs WITH (INDEX (IX_Runs_Counted))
    ORDER BY FinishedAt DESC
    OFFSET @newer ROWS FETCH NEXT 1 ROWS ONLY;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
