-- Purpose       List ledger rows, newest first: of one job, or of all.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per run.
-- See           SQL.md: T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @job_id uniqueidentifier = :job_id,
        @task nvarchar(256) = :task,
        @limit int = :limit;

BEGIN TRY
    SELECT TOP (@limit)
           JobId AS job_id, Fence AS fence, SlotNo AS slot_no, JobName AS task, JobKey AS [key],
           Queue AS queue, Worker AS worker, Attempt AS attempt, NominalTime AS nominal_time,
           DueAt AS due_at, ClaimedAt AS claimed_at, FinishedAt AS finished_at, Outcome AS outcome,
           Error AS error, Result AS result, Steps AS steps
    FROM reltask.Runs
    WHERE (@job_id IS NULL OR JobId = @job_id)
      AND (@task IS NULL OR JobName = @task)
    ORDER BY FinishedAt DESC, Fence DESC, JobId
    OPTION (RECOMPILE);
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
