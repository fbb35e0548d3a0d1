-- Purpose       Insert a worker's row, or renew it after an interruption; StartedAt stays.
-- Precondition  None: an existing row of this id is updated.
-- Lock order    One row.
-- Returns       No rows.
-- See           SQL.md: nullable now, T-SQL batch, duration in minutes.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @id nvarchar(256) = :id,
        @host nvarchar(256) = :host,
        @pid int = :pid,
        @version nvarchar(128) = :version,
        @app_version nvarchar(128) = :app_version,
        @queues nvarchar(max) = :queues,
        @tasks nvarchar(max) = :tasks,
        @concurrency int = :concurrency,
        @alive_for bigint = :alive_for;
DECLARE @alive_until datetime2(6) = DATEADD(
    MICROSECOND, @alive_for % 60000000,
    DATEADD(MINUTE, @alive_for / 60000000, @now)
);

BEGIN TRY
    BEGIN TRANSACTION;

    -- XACT_ABORT is off here: a refused INSERT must not end the caller's own transaction.
    SET XACT_ABORT OFF;
    BEGIN TRY
        INSERT INTO reltask.Workers WITH (ROWLOCK) (
            Id, Host, Pid, Version, AppVersion, Queues, Tasks, Concurrency, StartedAt, HeartbeatAt,
            AliveUntil
        )
        SELECT @id, @host, @pid, @version, @app_version, @queues, @tasks, @concurrency, @now, @now,
               @alive_until
        WHERE NOT EXISTS (SELECT 1 FROM reltask.Workers WITH (UPDLOCK, HOLDLOCK) WHERE Id = @id);
    END TRY
    BEGIN CATCH
        -- The same worker was registered at the same time: the row exists, and is updated below.
        IF ERROR_NUMBER() NOT IN (2601, 2627) OR XACT_STATE() = -1 THROW;
    END CATCH;
    SET XACT_ABORT ON;

    UPDATE reltask.Workers
    SET Host = @host,
        Pid = @pid,
        Version = @version,
        AppVersion = @app_version,
        Queues = @queues,
        Tasks = @tasks,
        Concurrency = @concurrency,
        HeartbeatAt = @now,
        AliveUntil = @alive_until,
        Idle = 0,
        StoppedAt = NULL,
        DeadAt = NULL
    WHERE Id = @id;

    COMMIT TRANSACTION;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
