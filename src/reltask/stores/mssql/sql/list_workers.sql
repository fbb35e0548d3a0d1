-- Purpose       List workers, live ones first.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per worker. It is dead if it was marked so, or if its AliveUntil has
--               passed.
-- See           SQL.md: nullable now, T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME());

BEGIN TRY
    SELECT worker.Id AS id, worker.Host AS host, worker.Pid AS pid, worker.Version AS version,
           worker.AppVersion AS app_version, worker.Queues AS queues, worker.Tasks AS tasks,
           worker.Concurrency AS concurrency,
           (
               SELECT COUNT(*)
               FROM reltask.Jobs AS job WITH (INDEX (IX_Jobs_Held), FORCESEEK)
               WHERE job.LockedBy = worker.Id AND job.LockedBy IS NOT NULL
           ) AS running,
           worker.StartedAt AS started_at, worker.HeartbeatAt AS heartbeat_at, known.state
    FROM reltask.Workers AS worker
    CROSS APPLY (
        SELECT CASE WHEN worker.StoppedAt IS NOT NULL THEN N'stopped'
                    WHEN worker.DeadAt IS NOT NULL OR worker.AliveUntil < @now THEN N'dead'
                    ELSE N'alive' END AS state
    ) AS known
    ORDER BY CASE known.state WHEN N'alive' THEN 0 WHEN N'dead' THEN 1 ELSE 2 END,
             worker.StartedAt, worker.Id;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
