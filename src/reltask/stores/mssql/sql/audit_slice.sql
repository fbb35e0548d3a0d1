-- Purpose       Find where the next slice of an audit ends.
-- Precondition  None. Reads :rows entries of each primary key.
-- Lock order    Keeps no locks.
-- Returns       One row: the last job of the slice; none if the rest is one slice.
-- Parameters    The slice begins after the job :after, and ends before either table has more than
--               :rows further rows, or with the first job that has more.
-- See           SQL.md: T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @after uniqueidentifier = :after,
        @rows bigint = :rows;

BEGIN TRY
    SELECT TOP (1) slice.EndsWith AS ends_with
    FROM (
        SELECT run.EndsWith
        FROM (
            SELECT JobId AS EndsWith
            FROM reltask.Runs
            WHERE JobId > @after
            ORDER BY JobId
            OFFSET @rows ROWS FETCH NEXT 1 ROWS ONLY
        ) AS run
        UNION ALL
        SELECT job.EndsWith
        FROM (
            SELECT Id AS EndsWith
            FROM reltask.Jobs
            WHERE Id > @after
            ORDER BY Id
            OFFSET @rows ROWS FETCH NEXT 1 ROWS ONLY
        ) AS job
    ) AS slice
    ORDER BY slice.EndsWith;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
