-- Purpose       Insert jobs, and report which of their ids are in the database.
-- Precondition  Neither the table nor the ledger has the id, and no row has its (task, key). Other
--               jobs of the batch are left out.
-- Lock order    The inserted rows. A second session with the same (task, key) waits for the first
--               to commit, and is then refused by the index; so the INSERT is tried again without
--               that row.
-- Returns       One row per id in the database: inserted is true if this statement inserted it, and
--               false if it was there before.
-- See           SQL.md: nullable now, lost answer, filtered index, T-SQL batch, duration in
--               minutes, JSON batch.
--
-- Every read is a seek by the whole key: a scan would wait for the uncommitted rows of other
-- producers, and two of them would deadlock.
--
-- One statement inserts, so the batch is inserted whole or not at all. XACT_ABORT is off around it,
-- because a refused insert must not end the caller's own transaction.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @jobs nvarchar(max) = :jobs;
DECLARE @tries int = 0,
        @done bit = 0;
DECLARE @given TABLE (
    Id            uniqueidentifier NOT NULL,
    JobName       nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    JobKey        nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL,
    Queue         nvarchar(128) NOT NULL,
    Priority      smallint      NOT NULL,
    Args          nvarchar(max) NOT NULL,
    Schedule      nvarchar(max) NULL,
    Declaration   nvarchar(128) NULL,
    AppVersion    nvarchar(128) NULL,
    MaxAttempts   int           NULL,
    LockTimeoutMs bigint        NULL,
    ParentId      uniqueidentifier NULL,
    ParentSlot    bigint        NULL,
    ParentStep    nvarchar(420) NULL,
    ParentNth     int           NULL,
    Headers       nvarchar(max) NULL,
    LimitKey      nvarchar(200) NULL,
    Limits        nvarchar(2000) NULL,
    NextRunTime   datetime2(6)  NOT NULL,
    Nth           int           NOT NULL
);
DECLARE @inserted TABLE (Id uniqueidentifier NOT NULL PRIMARY KEY);

BEGIN TRY
    -- Of two jobs of the batch that cannot both be inserted, Nth = 1 is the first.
    INSERT INTO @given
    SELECT job.id, job.task, job.[key], job.queue, job.priority, job.args, job.schedule,
           job.declaration, job.app_version, job.max_attempts, job.lock_timeout_ms,
           job.parent_id, job.parent_slot, job.parent_step, job.parent_nth, job.headers,
           job.limit_key, job.limits,
           COALESCE(
               job.run_at,
               DATEADD(
                   MICROSECOND, COALESCE(job.delay, 0) % 60000000,
                   DATEADD(MINUTE, COALESCE(job.delay, 0) / 60000000, @now)
               )
           ),
           ROW_NUMBER() OVER (
               PARTITION BY job.task COLLATE Latin1_General_100_BIN2,
                            COALESCE(job.[key] COLLATE Latin1_General_100_BIN2, N''),
                            CASE WHEN job.[key] IS NULL AND job.schedule IS NULL
                                 THEN job.nth ELSE -1 END
               ORDER BY job.nth
           )
    FROM OPENJSON(@jobs) WITH (
        nth             int              '$.nth',
        id              uniqueidentifier '$.id',
        task            nvarchar(256)    '$.task',
        [key]           nvarchar(256)    '$.key',
        queue           nvarchar(128)    '$.queue',
        priority        smallint         '$.priority',
        args            nvarchar(max)    '$.args',
        schedule        nvarchar(max)    '$.schedule',
        declaration     nvarchar(128)    '$.declaration',
        app_version     nvarchar(128)    '$.app_version',
        max_attempts    int              '$.max_attempts',
        lock_timeout_ms bigint           '$.lock_timeout_ms',
        parent_id       uniqueidentifier '$.parent_id',
        parent_slot     bigint           '$.parent_slot',
        parent_step     nvarchar(420)    '$.parent_step',
        parent_nth      int              '$.parent_nth',
        headers         nvarchar(max)    '$.headers',
        limit_key       nvarchar(200)    '$.limit_key',
        limits          nvarchar(2000)   '$.limits',
        run_at          datetime2(6)     '$.run_at',
        delay           bigint           '$.delay'
    ) AS job;

    SET XACT_ABORT OFF;
    WHILE @done = 0
    BEGIN
        BEGIN TRY
            INSERT INTO reltask.Jobs WITH (ROWLOCK) (
                Id, JobName, JobKey, Queue, Priority, Args, Recurring, Schedule, IntervalMinutes,
                Declaration, AppVersion, MaxAttempts, LockTimeoutMs, LockTimeoutMinutes, CreatedAt,
                NextRunTime, ParentId, ParentSlot, ParentStep, ParentNth, Headers,
                LimitKey, Limits
            )
            OUTPUT inserted.Id INTO @inserted (Id)
            SELECT given.Id, given.JobName, given.JobKey, given.Queue, given.Priority, given.Args,
                   CASE WHEN given.Schedule IS NULL THEN 0 ELSE 1 END, given.Schedule, 0,
                   given.Declaration, given.AppVersion, given.MaxAttempts, given.LockTimeoutMs, 0,
                   @now, given.NextRunTime, given.ParentId, given.ParentSlot, given.ParentStep,
                   given.ParentNth, given.Headers, given.LimitKey, given.Limits
            FROM @given AS given
            WHERE given.Nth = 1
              AND NOT EXISTS (
                  SELECT 1
                  FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), FORCESEEK)
                  WHERE job.Id = given.Id
              )
              AND NOT EXISTS (
                  SELECT 1
                  FROM reltask.Runs AS run WITH (INDEX (PK_Runs), FORCESEEK)
                  WHERE run.JobId = given.Id
              )
              AND NOT EXISTS (
                  SELECT 1
                  FROM reltask.Jobs AS job WITH (INDEX (UX_Jobs_NameAndKey), FORCESEEK)
                  WHERE job.JobName = given.JobName AND job.JobKey = given.JobKey
                    AND job.JobKey IS NOT NULL
              )
              AND NOT EXISTS (
                  SELECT 1
                  FROM reltask.Jobs AS job WITH (INDEX (UX_Jobs_Name), FORCESEEK)
                  WHERE job.JobName = given.JobName AND job.JobKey IS NULL AND job.Recurring = 1
                    AND given.JobKey IS NULL AND given.Schedule IS NOT NULL
              )
            ORDER BY given.JobName, given.JobKey, given.Id;
            SET @done = 1;
        END TRY
        BEGIN CATCH
            SET @tries = @tries + 1;
            IF ERROR_NUMBER() NOT IN (2601, 2627) OR XACT_STATE() = -1 OR @tries >= 10 THROW;
            DELETE FROM @inserted;
        END CATCH;
    END;
    SET XACT_ABORT ON;

    SELECT given.Id AS id,
           CAST(
               CASE WHEN EXISTS (SELECT 1 FROM @inserted AS inserted WHERE inserted.Id = given.Id)
                    THEN 1 ELSE 0 END
               AS bit
           ) AS inserted
    FROM @given AS given
    WHERE EXISTS (
        SELECT 1
        FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), FORCESEEK)
        WHERE job.Id = given.Id
    )
       OR EXISTS (
           SELECT 1
           FROM reltask.Runs AS run WITH (INDEX (PK_Runs), FORCESEEK)
           WHERE run.JobId = given.Id
       );
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
