-- Purpose       Read what `reltask doctor` reports about a database, with or without reltask's
--               tables.
-- Precondition  None. What this user may not see, or this server does not have, is null.
-- Lock order    Locks nothing.
-- Returns       One row.
-- See           SQL.md: nullable now, T-SQL batch.
--
-- Each view of the server's state is read in a batch of its own: TRY can catch the error of a
-- missing or forbidden view only there.

SET NOCOUNT ON;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME());
DECLARE @snapshot int,
        @optimized int,
        @escalation nvarchar(60),
        @sessions int,
        @seconds int,
        @owner nvarchar(256),
        @workers_used float,
        @sessions_used float,
        @cpu_used float;

BEGIN TRY
    EXEC sp_executesql
        N'SELECT @on = CAST(is_read_committed_snapshot_on AS int) FROM sys.databases WHERE name = DB_NAME()',
        N'@on int OUTPUT', @on = @snapshot OUTPUT;
END TRY
BEGIN CATCH
    SET @snapshot = NULL;
END CATCH;

BEGIN TRY
    EXEC sp_executesql
        N'SELECT @on = CAST(DATABASEPROPERTYEX(DB_NAME(), ''IsOptimizedLockingOn'') AS int)',
        N'@on int OUTPUT', @on = @optimized OUTPUT;
END TRY
BEGIN CATCH
    SET @optimized = NULL;
END CATCH;

BEGIN TRY
    EXEC sp_executesql
        N'SELECT @what = lock_escalation_desc FROM sys.tables WHERE object_id = OBJECT_ID(N''reltask.Jobs'', N''U'')',
        N'@what nvarchar(60) OUTPUT', @what = @escalation OUTPUT;
END TRY
BEGIN CATCH
    SET @escalation = NULL;
END CATCH;

BEGIN TRY
    EXEC sp_executesql
        N'SELECT @used = COUNT(*) FROM sys.dm_exec_sessions WHERE is_user_process = 1',
        N'@used int OUTPUT', @used = @sessions OUTPUT;
END TRY
BEGIN CATCH
    SET @sessions = NULL;
END CATCH;

BEGIN TRY
    EXEC sp_executesql
        N'SELECT TOP (1) @seconds = DATEDIFF(SECOND, active.transaction_begin_time, GETDATE()),
                 @owner = COALESCE(NULLIF(session.program_name, N''''), session.login_name)
          FROM sys.dm_tran_session_transactions AS own
          JOIN sys.dm_tran_active_transactions AS active ON active.transaction_id = own.transaction_id
          JOIN sys.dm_exec_sessions AS session ON session.session_id = own.session_id
          WHERE session.database_id = DB_ID() AND session.session_id <> @@SPID
          ORDER BY active.transaction_begin_time',
        N'@seconds int OUTPUT, @owner nvarchar(256) OUTPUT',
        @seconds = @seconds OUTPUT, @owner = @owner OUTPUT;
    SET @seconds = COALESCE(@seconds, 0);
END TRY
BEGIN CATCH
    SET @seconds = NULL;
END CATCH;

-- Azure SQL Database only: use of the tier's limits in percent, during the last hour.
BEGIN TRY
    EXEC sp_executesql
        N'SELECT @workers = MAX(max_worker_percent), @sessions = MAX(max_session_percent), @cpu = MAX(avg_cpu_percent)
          FROM sys.dm_db_resource_stats',
        N'@workers float OUTPUT, @sessions float OUTPUT, @cpu float OUTPUT',
        @workers = @workers_used OUTPUT, @sessions = @sessions_used OUTPUT, @cpu = @cpu_used OUTPUT;
END TRY
BEGIN CATCH
    SET @workers_used = NULL;
END CATCH;

BEGIN TRY
    SELECT @now AS now,
           CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(128)) AS version,
           CAST(SERVERPROPERTY('EngineEdition') AS int) AS engine_edition,
           LEFT(@@VERSION, CHARINDEX(NCHAR(10), @@VERSION + NCHAR(10)) - 1) AS words,
           USER_NAME() AS username,
           CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(128)) AS updateability,
           HAS_PERMS_BY_NAME(N'reltask.Jobs', N'OBJECT', N'UPDATE')
               & HAS_PERMS_BY_NAME(N'reltask.Runs', N'OBJECT', N'INSERT')
               & HAS_PERMS_BY_NAME(N'reltask.Workers', N'OBJECT', N'UPDATE')
               & HAS_PERMS_BY_NAME(N'reltask.Leases', N'OBJECT', N'UPDATE')
               & HAS_PERMS_BY_NAME(N'reltask.Steps', N'OBJECT', N'UPDATE')
               & HAS_PERMS_BY_NAME(N'reltask.Signals', N'OBJECT', N'UPDATE')
               & HAS_PERMS_BY_NAME(N'reltask.ChildEnds', N'OBJECT', N'INSERT')
               & HAS_PERMS_BY_NAME(N'reltask.Marks', N'OBJECT', N'DELETE')
               & HAS_PERMS_BY_NAME(N'reltask.Pauses', N'OBJECT', N'SELECT')
               & HAS_PERMS_BY_NAME(N'reltask.Keys', N'OBJECT', N'DELETE') AS may_run,
           HAS_PERMS_BY_NAME(N'reltask.Jobs', N'OBJECT', N'UPDATE') AS may_operate,
           HAS_PERMS_BY_NAME(N'reltask.Jobs', N'OBJECT', N'INSERT')
               & HAS_PERMS_BY_NAME(N'reltask.Signals', N'OBJECT', N'INSERT')
               & HAS_PERMS_BY_NAME(N'reltask.Marks', N'OBJECT', N'INSERT') AS may_enqueue,
           HAS_PERMS_BY_NAME(N'reltask.Jobs', N'OBJECT', N'SELECT')
               & HAS_PERMS_BY_NAME(N'reltask.Runs', N'OBJECT', N'SELECT')
               & HAS_PERMS_BY_NAME(N'reltask.Steps', N'OBJECT', N'SELECT')
               & HAS_PERMS_BY_NAME(N'reltask.Signals', N'OBJECT', N'SELECT')
               & HAS_PERMS_BY_NAME(N'reltask.ChildEnds', N'OBJECT', N'SELECT')
               & HAS_PERMS_BY_NAME(N'reltask.Marks', N'OBJECT', N'SELECT')
               & HAS_PERMS_BY_NAME(N'reltask.Pauses', N'OBJECT', N'SELECT') AS may_read,
           @sessions AS connections,
           NULLIF(@@MAX_CONNECTIONS, 0) AS connection_limit,
           @seconds AS oldest_transaction,
           @owner AS oldest_owner,
           @snapshot AS read_committed_snapshot,
           @optimized AS optimized_locking,
           @escalation AS lock_escalation,
           CAST(DATABASEPROPERTYEX(DB_NAME(), 'ServiceObjective') AS nvarchar(128))
               AS service_objective,
           @workers_used AS worker_percent,
           @sessions_used AS session_percent,
           @cpu_used AS cpu_percent;
END TRY
BEGIN CATCH
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
