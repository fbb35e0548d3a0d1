-- Purpose       List metrics, newest first.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per minute and task.
-- See           SQL.md: nullable now, T-SQL batch, duration in minutes.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @since bigint = :since,
        @task nvarchar(256) = :task;
DECLARE @after datetime2(6) =
    DATEADD(
        MINUTE, -1,
        DATEADD(
            MICROSECOND, -(@since % 60000000),
            DATEADD(MINUTE, -(@since / 60000000), @now)
        )
    );

BEGIN TRY
    SELECT Minute AS minute, JobName AS task, Succeeded AS succeeded, Failed AS failed,
           Seconds AS seconds, SecondsMost AS seconds_most, Late AS late, LateMost AS late_most
    FROM reltask.Metrics
    WHERE Minute > @after AND (@task IS NULL OR JobName = @task)
    ORDER BY Minute DESC, JobName;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
