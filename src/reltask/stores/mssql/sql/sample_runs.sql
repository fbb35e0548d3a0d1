-- Purpose       Sample the newest runs: how long they took, and how late they began.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per run that a worker has claimed, newest first.
-- Parameters    :since is in microseconds; :limit is the size of the sample.
-- See           SQL.md: nullable now, T-SQL batch, duration in minutes.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @since bigint = :since,
        @limit int = :limit;
DECLARE @after datetime2(6) =
    DATEADD(
        MICROSECOND, -(@since % 60000000),
        DATEADD(MINUTE, -(@since / 60000000), @now)
    );

BEGIN TRY
    SELECT run.JobName AS task, run.Queue AS queue, run.Outcome AS outcome,
           CASE WHEN run.FinishedAt > run.ClaimedAt
                THEN DATEDIFF_BIG(MICROSECOND, run.ClaimedAt, run.FinishedAt) / 1e6
                ELSE 0e0 END AS seconds,
           CASE WHEN run.ClaimedAt > run.DueAt
                THEN DATEDIFF_BIG(MICROSECOND, run.DueAt, run.ClaimedAt) / 1e6
                ELSE 0e0 END AS late
    FROM (
        SELECT TOP (@limit) JobName, Queue, Outcome, DueAt, ClaimedAt, FinishedAt
        FROM reltask.Runs
        WHERE FinishedAt > @after
        ORDER BY FinishedAt DESC
    ) AS run
    WHERE run.ClaimedAt IS NOT NULL;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
