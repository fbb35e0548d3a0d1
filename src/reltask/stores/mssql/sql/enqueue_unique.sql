-- Purpose       Insert one-offs of unique tasks whose key is free, and report which of the ids are
--               in the database.
-- Precondition  Neither the table nor the ledger has the id. The key has no row, or its job is
--               gone, dead or, if it is free from the start on, begun, and its time is over.
-- Lock order    Rows of Keys, and the gaps in which a key would be, by (task, key); then the
--               inserted jobs. Waits for a transaction that has the same key.
-- Returns       One row per id in the database: inserted is true if this statement inserted it, and
--               false if it was there before.
-- See           SQL.md: nullable now, lost answer, T-SQL batch, duration in minutes, JSON batch.
--
-- The statements after the first read what is committed once its locks are held, so a key's job is
-- seen if it lives. A known id is left out before its key is taken. Else a job that was sent twice,
-- and has ended, would leave a key that no end frees.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @jobs nvarchar(max) = :jobs;
DECLARE @given TABLE (
    Id            uniqueidentifier NOT NULL,
    JobName       nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    JobKey        nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL,
    Queue         nvarchar(128) NOT NULL,
    Priority      smallint      NOT NULL,
    Args          nvarchar(max) NOT NULL,
    MaxAttempts   int           NULL,
    LockTimeoutMs bigint        NULL,
    Headers       nvarchar(max) NULL,
    LimitKey      nvarchar(200) NULL,
    Limits        nvarchar(2000) NULL,
    NextRunTime   datetime2(6)  NOT NULL,
    UniqueKey     nvarchar(64) COLLATE Latin1_General_100_BIN2 NOT NULL,
    TakenUntil    datetime2(6)  NULL,
    UntilStart    bit           NOT NULL,
    Nth           int           NOT NULL,
    IsKnown       bit           NOT NULL
);
DECLARE @inserted TABLE (Id uniqueidentifier NOT NULL PRIMARY KEY);

BEGIN TRY
    -- Of two jobs of the batch with one key, Nth = 1 is the first.
    INSERT INTO @given
    SELECT job.id, job.task, job.[key], job.queue, job.priority, job.args, job.max_attempts,
           job.lock_timeout_ms, job.headers,
           job.limit_key, job.limits,
           COALESCE(
               job.run_at,
               DATEADD(
                   MICROSECOND, COALESCE(job.delay, 0) % 60000000,
                   DATEADD(MINUTE, COALESCE(job.delay, 0) / 60000000, @now)
               )
           ),
           job.unique_key,
           DATEADD(MICROSECOND, job.keep % 60000000, DATEADD(MINUTE, job.keep / 60000000, @now)),
           job.until_start,
           ROW_NUMBER() OVER (
               PARTITION BY job.task COLLATE Latin1_General_100_BIN2, job.unique_key
               ORDER BY job.nth
           ),
           CASE WHEN EXISTS (
                    SELECT 1
                    FROM reltask.Jobs AS known WITH (INDEX (PK_Jobs), FORCESEEK)
                    WHERE known.Id = job.id
                ) OR EXISTS (
                    SELECT 1
                    FROM reltask.Runs AS run WITH (INDEX (PK_Runs), FORCESEEK)
                    WHERE run.JobId = job.id
                ) THEN 1 ELSE 0 END
    FROM OPENJSON(@jobs) WITH (
        nth             int              '$.nth',
        id              uniqueidentifier '$.id',
        task            nvarchar(256)    '$.task',
        [key]           nvarchar(256)    '$.key',
        queue           nvarchar(128)    '$.queue',
        priority        smallint         '$.priority',
        args            nvarchar(max)    '$.args',
        max_attempts    int              '$.max_attempts',
        lock_timeout_ms bigint           '$.lock_timeout_ms',
        headers         nvarchar(max)    '$.headers',
        limit_key       nvarchar(200)    '$.limit_key',
        limits          nvarchar(2000)   '$.limits',
        run_at          datetime2(6)     '$.run_at',
        delay           bigint           '$.delay',
        unique_key      nvarchar(64)     '$.unique_key',
        keep            bigint           '$.keep',
        until_start     bit              '$.until_start'
    ) AS job;

    BEGIN TRANSACTION;

    INSERT INTO reltask.Keys WITH (ROWLOCK) (JobName, UniqueKey, JobId, TakenUntil, UntilStart)
    SELECT given.JobName, given.UniqueKey, given.Id, given.TakenUntil, given.UntilStart
    FROM @given AS given
    WHERE given.Nth = 1 AND given.IsKnown = 0
      AND NOT EXISTS (
          SELECT 1
          FROM reltask.Keys AS held WITH (INDEX (PK_Keys), FORCESEEK, UPDLOCK, HOLDLOCK, ROWLOCK)
          WHERE held.JobName = given.JobName AND held.UniqueKey = given.UniqueKey
      )
    ORDER BY given.JobName, given.UniqueKey;

    UPDATE held
    SET JobId = given.Id,
        TakenUntil = given.TakenUntil,
        UntilStart = given.UntilStart
    FROM @given AS given
    JOIN reltask.Keys AS held WITH (INDEX (PK_Keys), UPDLOCK, ROWLOCK)
        ON held.JobName = given.JobName AND held.UniqueKey = given.UniqueKey
    WHERE given.Nth = 1 AND given.IsKnown = 0 AND held.JobId <> given.Id
      AND (held.TakenUntil IS NULL OR held.TakenUntil <= @now)
      AND NOT EXISTS (
          SELECT 1
          FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), FORCESEEK)
          WHERE job.Id = held.JobId AND job.DeadAt IS NULL
            AND (held.UntilStart = 0 OR job.SlotStartedAt IS NULL)
      )
    OPTION (LOOP JOIN, FORCE ORDER);

    INSERT INTO reltask.Jobs WITH (ROWLOCK) (
        Id, JobName, JobKey, Queue, Priority, Args, Recurring, IntervalMinutes, MaxAttempts,
        LockTimeoutMs, LockTimeoutMinutes, CreatedAt, NextRunTime, Headers, LimitKey,
        Limits
    )
    OUTPUT inserted.Id INTO @inserted (Id)
    SELECT given.Id, given.JobName, given.JobKey, given.Queue, given.Priority, given.Args, 0, 0,
           given.MaxAttempts, given.LockTimeoutMs, 0, @now, given.NextRunTime, given.Headers,
           given.LimitKey, given.Limits
    FROM @given AS given
    JOIN reltask.Keys AS held WITH (INDEX (PK_Keys), FORCESEEK)
        ON held.JobName = given.JobName AND held.UniqueKey = given.UniqueKey
    WHERE given.Nth = 1 AND given.IsKnown = 0 AND held.JobId = given.Id
    OPTION (LOOP JOIN, FORCE ORDER);

    COMMIT TRANSACTION;

    SELECT given.Id AS id,
           CAST(CASE WHEN inserted.Id IS NULL THEN 0 ELSE 1 END AS bit) AS inserted
    FROM @given AS given
    LEFT JOIN @inserted AS inserted ON inserted.Id = given.Id
    WHERE given.IsKnown = 1 OR inserted.Id IS NOT NULL;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
