-- Control: what people decide while workers run. Run it after 005, as the same user. It can be run
-- again: an existing table stays as it is.
--
-- Version 6; code of version 6 or newer may run on it: no earlier one was released.
--
-- Pauses   queues and tasks of which nothing is claimed, with who paused them, when and why
-- Actions  what operators did through the dashboard
-- Keys     which job has the key of a unique task
-- Limits   how many jobs may run at once, and start in a time; one row per declared limit
-- LimitKeys  what is taken of a limit, one row per key: the limit's name, or name:value for a limit
--            that counts by a value

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET QUOTED_IDENTIFIER ON;
SET ANSI_NULLS ON;

BEGIN TRANSACTION;

-- A row is inserted and deleted, never updated: a claim that skips a locked row must not take a
-- changed reason for the end of the pause.
IF OBJECT_ID(N'reltask.Pauses', N'U') IS NULL
BEGIN
    CREATE TABLE reltask.Pauses (
        Kind     nvarchar(16) COLLATE Latin1_General_100_BIN2 NOT NULL,
        Name     nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,  -- of queue or task
        Reason   nvarchar(2000)   NULL,
        PausedBy nvarchar(256)    NOT NULL,             -- a person or a program, as it says itself
        PausedAt datetime2(6)     NOT NULL,

        CONSTRAINT PK_Pauses PRIMARY KEY (Kind, Name),
        -- No control characters: the texts are printed.
        CONSTRAINT CK_Pauses_TextsArePrintable CHECK (
            Name + COALESCE(Reason, N'') + PausedBy
            NOT LIKE N'%[' + NCHAR(1) + N'-' + NCHAR(31)
                + NCHAR(127) + N'-' + NCHAR(159) + N']%' COLLATE Latin1_General_100_BIN2
        ),
        CONSTRAINT CK_Pauses_Kind CHECK (Kind IN (N'queue', N'task')),
        CONSTRAINT CK_Pauses_Texts CHECK (LEN(Name) > 0 AND LEN(PausedBy) > 0),
        CONSTRAINT CK_Pauses_PausedAt CHECK (
            PausedAt >= CONVERT(datetime2(6), '1970-01-01', 126)
            AND PausedAt < CONVERT(datetime2(6), '6000-01-01', 126)
        )
    );

    -- A batch must never lock a whole table.
    ALTER TABLE reltask.Pauses SET (LOCK_ESCALATION = DISABLE);
END;

-- What operators did through the dashboard: recorded before it is done, and completed afterwards.
-- Seen is the fence or term that the page showed; a NULL Outcome was begun, and may be done.
IF OBJECT_ID(N'reltask.Actions', N'U') IS NULL
BEGIN
    CREATE TABLE reltask.Actions (
        Id      uniqueidentifier NOT NULL,              -- made by the dashboard
        At      datetime2(6)     NOT NULL,
        Actor   nvarchar(256)    NOT NULL,              -- as the application names the person
        Action  nvarchar(32)     NOT NULL,              -- retry, cancel, run now, pause …
        Target  nvarchar(2000)   NOT NULL,              -- a job, a queue, a task, or a filter
        Seen    nvarchar(256)    NULL,
        Jobs    int              NOT NULL,              -- how many it was meant for
        Outcome nvarchar(2000)   NULL,
        Changed int              NULL,                  -- how many were changed

        CONSTRAINT PK_Actions PRIMARY KEY NONCLUSTERED (Id),
        CONSTRAINT CK_Actions_TextsArePrintable CHECK (
            Actor + Action + Target + COALESCE(Seen, N'') + COALESCE(Outcome, N'')
            NOT LIKE N'%[' + NCHAR(1) + N'-' + NCHAR(31)
                + NCHAR(127) + N'-' + NCHAR(159) + N']%' COLLATE Latin1_General_100_BIN2
        ),
        CONSTRAINT CK_Actions_Texts CHECK (LEN(Actor) > 0 AND LEN(Action) > 0),
        CONSTRAINT CK_Actions_Counts CHECK (Jobs >= 0 AND Changed >= 0),
        CONSTRAINT CK_Actions_At CHECK (
            At >= CONVERT(datetime2(6), '1970-01-01', 126)
            AND At < CONVERT(datetime2(6), '6000-01-01', 126)
        )
    );
    CREATE CLUSTERED INDEX IX_Actions_Latest ON reltask.Actions (At, Id);
END;

-- The keys of unique tasks. The primary key is the only constraint. A key is taken while its job is
-- there and not dead, and before TakenUntil: the end of a job does not touch this table. A row
-- whose job is gone is taken over by the next job, or removed by the maintenance. With UntilStart
-- the key is free when the job's run begins.
IF OBJECT_ID(N'reltask.Keys', N'U') IS NULL
BEGIN
    CREATE TABLE reltask.Keys (
        JobName    nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
        UniqueKey  nvarchar(64) COLLATE Latin1_General_100_BIN2 NOT NULL,  -- hash of arguments
        JobId      uniqueidentifier NOT NULL,           -- the job that has it, or had it last
        TakenUntil datetime2(6)     NULL,               -- at least; NULL: no time
        UntilStart bit              NOT NULL,

        CONSTRAINT PK_Keys PRIMARY KEY (JobName, UniqueKey),
        CONSTRAINT CK_Keys_Texts CHECK (LEN(JobName) > 0 AND LEN(UniqueKey) > 0),
        CONSTRAINT CK_Keys_TakenUntil CHECK (
            TakenUntil >= CONVERT(datetime2(6), '1970-01-01', 126)
            AND TakenUntil < CONVERT(datetime2(6), '6101-01-01', 126)
        )
    );
    ALTER TABLE reltask.Keys SET (LOCK_ESCALATION = DISABLE);
END;

-- A claim takes a place of each of the job's keys, and a token of those that have a rate. Only
-- claims write LimitKeys. The end of a claim inserts a mark instead, because it may be part of a
-- transaction that stays open: the trigger below sees every end, whichever statement makes it.
IF OBJECT_ID(N'reltask.Limits', N'U') IS NULL
BEGIN
    -- Running: at once, per key; RateCount starts in RatePeriodMs, per key; NULL: any number.
    -- Burst: the most tokens that a key can have. Declaration: hash of the one in code.
    CREATE TABLE reltask.Limits (
        Name         nvarchar(100) COLLATE Latin1_General_100_BIN2 NOT NULL,
        Running      int           NULL,
        RateCount    int           NULL,
        RatePeriodMs bigint        NULL,
        Burst        int           NULL,
        Declaration  nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        AppVersion   nvarchar(128) NULL,
        ChangedAt    datetime2(6)  NOT NULL,

        CONSTRAINT PK_Limits PRIMARY KEY (Name),
        CONSTRAINT CK_Limits_Name CHECK (LEN(Name) > 0 AND CHARINDEX(N':', Name) = 0),
        CONSTRAINT CK_Limits_Range CHECK (
            (Running IS NULL OR Running BETWEEN 0 AND 1000000)
            AND (RateCount IS NULL OR RateCount BETWEEN 1 AND 1000000000)
            AND (RatePeriodMs IS NULL OR RatePeriodMs BETWEEN 1 AND 3155760000000)
            AND (Burst IS NULL OR Burst BETWEEN 1 AND 1000000000)
        ),
        CONSTRAINT CK_Limits_RateIsWhole CHECK (
            (RateCount IS NULL AND RatePeriodMs IS NULL AND Burst IS NULL)
            OR (RateCount IS NOT NULL AND RatePeriodMs IS NOT NULL AND Burst IS NOT NULL)
        )
    );
END;

-- Running: places taken, less marks that were folded. Tokens: as of RefilledAt.
IF OBJECT_ID(N'reltask.LimitKeys', N'U') IS NULL
BEGIN
    CREATE TABLE reltask.LimitKeys (
        [Key]      nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        Name       nvarchar(100) COLLATE Latin1_General_100_BIN2 NOT NULL,
        Running    int           NOT NULL,
        Tokens     float         NOT NULL,
        RefilledAt datetime2(6)  NOT NULL,
        Seq        bigint        NOT NULL CONSTRAINT DF_LimitKeys_Seq DEFAULT 0,

        CONSTRAINT PK_LimitKeys PRIMARY KEY ([Key]),
        CONSTRAINT CK_LimitKeys_Key CHECK (LEN([Key]) > 0)
    );
    CREATE NONCLUSTERED INDEX IX_LimitKeys_Limit ON reltask.LimitKeys (Name);

    ALTER TABLE reltask.LimitKeys SET (LOCK_ESCALATION = DISABLE);
END;

-- A claim that ends frees its places; one whose job gets other keys takes them, whether there are
-- any or not. Such marks are due at once, by whatever clock the claim was made. A job that is new,
-- or can be claimed again, or at another time, marks its key for that time. Claims that move a job
-- from one of its keys to another leave a mark themselves, if there is need.
IF OBJECT_ID(N'reltask.JobsMarkTheirLimits', N'TR') IS NOT NULL
    EXEC (N'DROP TRIGGER reltask.JobsMarkTheirLimits');
EXEC (
    N'CREATE TRIGGER reltask.JobsMarkTheirLimits ON reltask.Jobs AFTER INSERT, UPDATE, DELETE AS
BEGIN
    SET NOCOUNT ON;
    IF NOT EXISTS (SELECT 1 FROM inserted WHERE LimitKey IS NOT NULL)
        AND NOT EXISTS (SELECT 1 FROM deleted WHERE LimitKey IS NOT NULL)
        RETURN;

    INSERT INTO reltask.Marks WITH (ROWLOCK) (Task, At, Kind, Name, Freed)
    SELECT N''limit'', MIN(freed.LockedAt), N''limit'', freed.[Key], SUM(freed.Places)
    FROM (
        SELECT old.LockedAt, old.LimitKey AS [Key], 1 AS Places
        FROM deleted AS old
        LEFT JOIN inserted AS new ON new.Id = old.Id
        WHERE old.LockedBy IS NOT NULL AND old.LimitKey IS NOT NULL AND old.Limits IS NULL
          AND (
              new.LockedBy IS NULL OR new.Limits IS NOT NULL OR new.LimitKey IS NULL
              OR new.LimitKey <> old.LimitKey
          )
        UNION ALL
        SELECT old.LockedAt, taken.value COLLATE Latin1_General_100_BIN2, 1
        FROM deleted AS old
        LEFT JOIN inserted AS new ON new.Id = old.Id
        CROSS APPLY OPENJSON(old.Limits) AS taken
        WHERE old.LockedBy IS NOT NULL AND old.Limits IS NOT NULL
          AND (new.LockedBy IS NULL OR new.Limits IS NULL OR new.Limits <> old.Limits)
        UNION ALL
        SELECT new.LockedAt, new.LimitKey, -1
        FROM inserted AS new
        JOIN deleted AS old ON old.Id = new.Id
        WHERE old.LockedBy IS NOT NULL AND new.LockedBy IS NOT NULL
          AND new.LimitKey IS NOT NULL AND new.Limits IS NULL
          AND (
              old.Limits IS NOT NULL OR old.LimitKey IS NULL OR new.LimitKey <> old.LimitKey
          )
        UNION ALL
        SELECT new.LockedAt, taken.value COLLATE Latin1_General_100_BIN2, -1
        FROM inserted AS new
        JOIN deleted AS old ON old.Id = new.Id
        CROSS APPLY OPENJSON(new.Limits) AS taken
        WHERE old.LockedBy IS NOT NULL AND new.LockedBy IS NOT NULL AND new.Limits IS NOT NULL
          AND (old.Limits IS NULL OR new.Limits <> old.Limits)
    ) AS freed
    GROUP BY freed.[Key];

    INSERT INTO reltask.Marks WITH (ROWLOCK) (Queue, Task, At, Kind, Name)
    SELECT DISTINCT new.Queue, new.JobName, new.DueAt, N''limit'', new.LimitKey
    FROM inserted AS new
    LEFT JOIN deleted AS old ON old.Id = new.Id
    WHERE new.LimitKey IS NOT NULL AND new.DueAt < CONVERT(datetime2(6), ''8999-12-31'', 126)
      AND new.LockedBy IS NULL AND new.PausedAt IS NULL AND new.DeadAt IS NULL
      AND (
          old.Id IS NULL OR old.LockedBy IS NOT NULL OR old.PausedAt IS NOT NULL
          OR old.DeadAt IS NOT NULL OR new.DueAt <> old.DueAt OR new.Queue <> old.Queue
          OR new.Priority <> old.Priority OR old.LimitKey IS NULL
          OR COALESCE(new.Limits, N'''') <> COALESCE(old.Limits, N'''')
          OR (new.Limits IS NULL AND new.LimitKey <> old.LimitKey)
      );
END'
);

-- Last, the version that this script leads to, and the oldest that may run on it. Newer ones stay.
UPDATE reltask.Meta SET SchemaVersion = 6, OldestVersion = 6, MigratedAt = SYSUTCDATETIME()
WHERE SchemaVersion < 6;

COMMIT TRANSACTION;
