-- reltask on SQL Server 2016 or newer and on Azure SQL. Run it in the database itself, as a user who may create a schema
-- and tables, in any SQL tool: it is one batch. Running it again changes nothing.
--
-- Jobs     one row per job: what to run, when it is due, and who holds it now
-- Runs     the ledger: one row per run that has ended; (JobId, SlotNo) ends at most once, by constraint
-- Workers  who is alive, and which tasks they know
-- Meta     the version of this schema
--
-- Times are UTC, datetime2(6): the same grain as Python's datetime, so a time that travels through a worker comes back
-- equal and can be compared; datetime2(7) takes the same 8 bytes and would lose its last digit on the way.
-- Names compare byte by byte (BIN2): two tasks that differ in case are two tasks, whatever the database's collation.
-- Whoever writes here needs QUOTED_IDENTIFIER and the ANSI settings ON, because of the filtered indexes. Every driver has
-- them on; sqlcmd wants -I.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET QUOTED_IDENTIFIER ON;
SET ANSI_NULLS ON;

IF SCHEMA_ID(N'reltask') IS NULL
    EXEC (N'CREATE SCHEMA reltask');

-- A table is created together with its indexes, or not at all, so that "the table is there" says everything.
BEGIN TRANSACTION;

IF OBJECT_ID(N'reltask.Meta', N'U') IS NULL
BEGIN
    CREATE TABLE reltask.Meta (
        OnlyRow       bit          NOT NULL CONSTRAINT DF_Meta_OnlyRow DEFAULT 1,
        SchemaVersion int          NOT NULL,
        MigratedAt    datetime2(6) NOT NULL CONSTRAINT DF_Meta_MigratedAt DEFAULT SYSUTCDATETIME(),

        CONSTRAINT PK_Meta PRIMARY KEY (OnlyRow),
        CONSTRAINT CK_Meta_OnlyRow CHECK (OnlyRow = 1)
    );
END;

IF OBJECT_ID(N'reltask.Jobs', N'U') IS NULL
BEGIN
    CREATE TABLE reltask.Jobs (
        Id                 uniqueidentifier NOT NULL CONSTRAINT DF_Jobs_Id DEFAULT NEWID(),
        JobName            nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,  -- the task's name
        JobKey             nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL,      -- one of several schedules of a task, or a unique one-off
        Queue              nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL CONSTRAINT DF_Jobs_Queue DEFAULT N'default',
        Priority           smallint         NOT NULL CONSTRAINT DF_Jobs_Priority DEFAULT 5,
        Args               nvarchar(max)    NOT NULL CONSTRAINT DF_Jobs_Args DEFAULT N'{}',
        MaxAttempts        int              NULL,
        CreatedAt          datetime2(6)     NOT NULL CONSTRAINT DF_Jobs_CreatedAt DEFAULT SYSUTCDATETIME(),

        -- The schedule. A row made by hand needs no more than JobName and NextRunTime: it recurs every IntervalMinutes.
        Recurring          bit              NOT NULL CONSTRAINT DF_Jobs_Recurring DEFAULT 1,  -- 0: a one-off, removed when its slot is done
        IntervalMinutes    int              NOT NULL CONSTRAINT DF_Jobs_IntervalMinutes DEFAULT 10,
        IntervalMs         bigint           NULL,           -- overrides IntervalMinutes
        Schedule           nvarchar(max)    NULL,           -- overrides both: cron, alignment, missed slots
        LockTimeoutMinutes int              NOT NULL CONSTRAINT DF_Jobs_LockTimeoutMinutes DEFAULT 2,  -- 0: the claiming worker's setting
        LockTimeoutMs      bigint           NULL,           -- overrides LockTimeoutMinutes
        Declaration        nvarchar(128)    NULL,           -- hash of the declaration in code
        AppVersion         nvarchar(128)    NULL,           -- of the app that declared it

        -- The slot
        SlotNo             bigint           NOT NULL CONSTRAINT DF_Jobs_SlotNo DEFAULT 1,
        NextRunTime        datetime2(6)     NOT NULL,       -- nominal time; changes only when the slot is done
        NotBefore          datetime2(6)     NULL,           -- moved by backoff, snooze and run-now
        DueAt              AS COALESCE(NotBefore, NextRunTime) PERSISTED NOT NULL,
        SlotStartedAt      datetime2(6)     NULL,           -- first claim of this slot: what the interval counts from
        LastRunTime        datetime2(6)     NULL,
        Attempt            int              NOT NULL CONSTRAINT DF_Jobs_Attempt DEFAULT 0,  -- claims of this slot, less those given back
        PausedAt           datetime2(6)     NULL,
        DeadAt             datetime2(6)     NULL,
        Losses             int              NOT NULL CONSTRAINT DF_Jobs_Losses DEFAULT 0,   -- runs in a row that lost their lock
        Isolated           bit              NOT NULL CONSTRAINT DF_Jobs_Isolated DEFAULT 0, -- two or more: one such job per worker at a time

        -- The claim
        LockedBy           nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL,
        LockedAt           datetime2(6)     NULL,           -- when it was claimed; heartbeats do not move it
        HeartbeatAt        datetime2(6)     NULL,
        ClaimTimeoutMs     bigint           NULL,           -- the lock timeout as copied at the claim
        LockExpiresAt      datetime2(6)     NULL,           -- HeartbeatAt + ClaimTimeoutMs, for the index
        ClaimToken         uniqueidentifier NULL,
        Fence              bigint           NOT NULL CONSTRAINT DF_Jobs_Fence DEFAULT 0,
        Progress           nvarchar(max)    NULL,

        -- Ids are random to SQL Server, which sorts them by their last bytes: as the clustered key they would tear every
        -- page apart. Rows lie in the order in which they came.
        RowNo              bigint           NOT NULL IDENTITY(1, 1),

        CONSTRAINT PK_Jobs PRIMARY KEY NONCLUSTERED (Id),
        CONSTRAINT UQ_Jobs_RowNo UNIQUE CLUSTERED (RowNo),
        CONSTRAINT CK_Jobs_Priority CHECK (Priority BETWEEN 0 AND 9),
        CONSTRAINT CK_Jobs_Args CHECK (ISJSON(Args) = 1),
        CONSTRAINT CK_Jobs_MaxAttempts CHECK (MaxAttempts > 0),
        CONSTRAINT CK_Jobs_LockTimeout CHECK (LockTimeoutMinutes >= 0 AND (LockTimeoutMs IS NULL OR LockTimeoutMs > 0)),
        CONSTRAINT CK_Jobs_Interval CHECK (IntervalMinutes >= 0 AND (IntervalMs IS NULL OR IntervalMs > 0)),
        CONSTRAINT CK_Jobs_Schedule CHECK (
            (Recurring = 0 AND Schedule IS NULL)
            OR (Recurring = 1 AND (Schedule IS NOT NULL OR IntervalMs IS NOT NULL OR IntervalMinutes > 0))
        ),
        CONSTRAINT CK_Jobs_LockIsWhole CHECK (
            (LockedBy IS NULL AND LockedAt IS NULL AND HeartbeatAt IS NULL AND LockExpiresAt IS NULL)
            OR (LockedBy IS NOT NULL AND LockedAt IS NOT NULL AND HeartbeatAt IS NOT NULL AND LockExpiresAt IS NOT NULL)
        )
    );

    -- Two schedules, or two unique one-offs, of one task never share a key. A filter cannot say OR: two indexes.
    CREATE UNIQUE NONCLUSTERED INDEX UX_Jobs_NameAndKey ON reltask.Jobs (JobName, JobKey) WHERE JobKey IS NOT NULL;
    CREATE UNIQUE NONCLUSTERED INDEX UX_Jobs_Name ON reltask.Jobs (JobName) WHERE JobKey IS NULL AND Recurring = 1;

    -- What a poll looks through: one lane per (Isolated, queue, task, priority), in order of due
    -- time. DueAt is NextRunTime unless something has moved it; "LockedBy IS NULL" is in the filter,
    -- so queries must spell it out.
    CREATE NONCLUSTERED INDEX IX_Jobs_Polling
        ON reltask.Jobs (Isolated, Queue, JobName, Priority, DueAt)
        WHERE LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL;

    -- Whose locks end next, and what one worker holds.
    CREATE NONCLUSTERED INDEX IX_Jobs_Expiring ON reltask.Jobs (LockExpiresAt) INCLUDE (LockedAt) WHERE LockedBy IS NOT NULL;
    CREATE NONCLUSTERED INDEX IX_Jobs_Held ON reltask.Jobs (LockedBy) INCLUDE (Fence) WHERE LockedBy IS NOT NULL;

    -- Dead letters, listed by people.
    CREATE NONCLUSTERED INDEX IX_Jobs_Dead ON reltask.Jobs (DeadAt) WHERE DeadAt IS NOT NULL;

    -- A batch must never end in a lock on the whole table. Babelfish has no escalation, and no such option.
    IF SERVERPROPERTY('Babelfish') IS NULL
        EXEC (N'ALTER TABLE reltask.Jobs SET (LOCK_ESCALATION = DISABLE)');
END;

IF OBJECT_ID(N'reltask.Runs', N'U') IS NULL
BEGIN
    CREATE TABLE reltask.Runs (
        JobId       uniqueidentifier NOT NULL,
        Fence       bigint           NOT NULL,
        SlotNo      bigint           NOT NULL,
        JobName     nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
        JobKey      nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL,
        Queue       nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        Worker      nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL,  -- null: no worker ran it (skipped or discarded)
        Attempt     int              NOT NULL,
        NominalTime datetime2(6)     NOT NULL,
        DueAt       datetime2(6)     NOT NULL,
        ClaimedAt   datetime2(6)     NULL,
        FinishedAt  datetime2(6)     NOT NULL,
        Outcome     nvarchar(16) COLLATE Latin1_General_100_BIN2 NOT NULL,
        Error       nvarchar(max)    NULL,
        Result      nvarchar(max)    NULL,

        CONSTRAINT PK_Runs PRIMARY KEY NONCLUSTERED (JobId, Fence),
        CONSTRAINT CK_Runs_Outcome CHECK (Outcome IN (
            N'succeeded', N'cancelled', N'skipped', N'failed', N'snoozed', N'released', N'abandoned', N'lost', N'discarded'))
    );

    -- Written at its end, pruned from its beginning, listed backwards: the ledger lies in the order of time.
    CREATE CLUSTERED INDEX IX_Runs_Finished ON reltask.Runs (FinishedAt);

    -- Each slot ends exactly once.
    CREATE UNIQUE NONCLUSTERED INDEX UX_Runs_SlotEndsOnce ON reltask.Runs (JobId, SlotNo)
        WHERE Outcome IN (N'succeeded', N'cancelled', N'skipped', N'discarded');
END;

IF OBJECT_ID(N'reltask.Workers', N'U') IS NULL
BEGIN
    CREATE TABLE reltask.Workers (
        Id          nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
        Host        nvarchar(256)    NOT NULL,
        Pid         int              NOT NULL,
        Version     nvarchar(128)    NOT NULL,
        AppVersion  nvarchar(128)    NULL,
        Queues      nvarchar(max)    NOT NULL,
        Tasks       nvarchar(max)    NOT NULL,
        Concurrency int              NOT NULL,
        StartedAt   datetime2(6)     NOT NULL,
        HeartbeatAt datetime2(6)     NOT NULL,
        AliveUntil  datetime2(6)     NOT NULL,
        StoppedAt   datetime2(6)     NULL,

        CONSTRAINT PK_Workers PRIMARY KEY (Id)
    );
END;

-- Last: the version that this script leads to. A newer one stays.
UPDATE reltask.Meta SET SchemaVersion = 1, MigratedAt = SYSUTCDATETIME() WHERE SchemaVersion < 1;
INSERT INTO reltask.Meta (SchemaVersion)
SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM reltask.Meta WITH (UPDLOCK, HOLDLOCK));

COMMIT TRANSACTION;
