-- reltask on SQL Server 2016 or newer and on Azure SQL. Run it in the database itself, as a user
-- who may create a schema and tables, in any SQL tool: it is one batch. It can be run again: an
-- existing table stays as it is.
--
-- Version 1; code of version 1 or newer may run on it.
--
-- Jobs     one row per job: what to run, when it is due, and which worker holds it
-- Runs     the ledger: one row per ended run; (JobId, SlotNo) ends at most once, by constraint
-- Workers  the workers, until when each is alive, and the tasks that it knows
-- Meta     the version of this schema, and the oldest whose code may run on it
--
-- Times are UTC in datetime2(6). Python's datetime has the same precision, so a time that went
-- through a worker still compares equal. datetime2(7) takes the same 8 bytes, and would lose its
-- last digit on the way.
--
-- Names compare byte by byte (BIN2): two tasks that differ in case are two tasks, whatever the
-- database's collation.
--
-- Sessions that write here need QUOTED_IDENTIFIER and the ANSI settings ON, because of the filtered
-- indexes. Every driver has them on; sqlcmd needs -I.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET QUOTED_IDENTIFIER ON;
SET ANSI_NULLS ON;

IF SCHEMA_ID(N'reltask') IS NULL
    EXEC (N'CREATE SCHEMA reltask');

-- A table is created together with its indexes or not at all: if it exists, it is complete.
BEGIN TRANSACTION;

IF OBJECT_ID(N'reltask.Meta', N'U') IS NULL
BEGIN
    CREATE TABLE reltask.Meta (
        OnlyRow       bit          NOT NULL CONSTRAINT DF_Meta_OnlyRow DEFAULT 1,
        SchemaVersion int          NOT NULL,
        OldestVersion int          NOT NULL,                -- older code must not start
        MigratedAt    datetime2(6) NOT NULL CONSTRAINT DF_Meta_MigratedAt DEFAULT SYSUTCDATETIME(),
        Shard         smallint     NULL,                    -- NULL: a whole install
        -- A shard that gets no new jobs.
        Draining      bit          NOT NULL CONSTRAINT DF_Meta_Draining DEFAULT 0,

        CONSTRAINT PK_Meta PRIMARY KEY (OnlyRow),
        CONSTRAINT CK_Meta_OnlyRow CHECK (OnlyRow = 1),
        CONSTRAINT CK_Meta_Shard CHECK (Shard BETWEEN 0 AND 4095)
    );
END;

IF OBJECT_ID(N'reltask.Jobs', N'U') IS NULL
BEGIN
    CREATE TABLE reltask.Jobs (
        Id                 uniqueidentifier NOT NULL CONSTRAINT DF_Jobs_Id DEFAULT NEWID(),
        -- The task's name; and a name for one schedule or one-off of the task.
        JobName            nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
        JobKey             nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL,
        Queue              nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL
                           CONSTRAINT DF_Jobs_Queue DEFAULT N'default',
        Priority           smallint         NOT NULL CONSTRAINT DF_Jobs_Priority DEFAULT 5,
        Args               nvarchar(max)    NOT NULL CONSTRAINT DF_Jobs_Args DEFAULT N'{}',
        Headers            nvarchar(max)    NULL,           -- travel beside Args; NULL: none
        MaxAttempts        int              NULL,
        CreatedAt          datetime2(6)     NOT NULL
                           CONSTRAINT DF_Jobs_CreatedAt DEFAULT SYSUTCDATETIME(),

        -- The schedule. A row made by hand needs only JobName and NextRunTime: it recurs every
        -- IntervalMinutes. Recurring is 0 for a one-off, which is deleted when its slot has ended.
        -- LockTimeoutMinutes is 0 if the claiming worker's setting counts.
        Recurring          bit              NOT NULL CONSTRAINT DF_Jobs_Recurring DEFAULT 1,
        IntervalMinutes    int              NOT NULL CONSTRAINT DF_Jobs_IntervalMinutes DEFAULT 10,
        IntervalMs         bigint           NULL,           -- overrides IntervalMinutes
        Schedule           nvarchar(max)    NULL,           -- overrides both: cron and others
        LockTimeoutMinutes int              NOT NULL
                           CONSTRAINT DF_Jobs_LockTimeoutMinutes DEFAULT 2,
        LockTimeoutMs      bigint           NULL,           -- overrides LockTimeoutMinutes
        Declaration        nvarchar(128)    NULL,           -- hash of the declaration in code
        AppVersion         nvarchar(128)    NULL,           -- of the app that declared it

        -- Limits: see 006. LimitKey is where it waits for room, NULL without a limit; Limits has
        -- all its keys (JSON), NULL: that one alone. LimitLane is for claims, which go from one
        -- lane to the next; no name has a control character.
        LimitKey           nvarchar(200) COLLATE Latin1_General_100_BIN2 NULL,
        Limits             nvarchar(2000)   NULL,
        LimitLane          AS CASE WHEN LimitKey IS NOT NULL THEN CAST(
            CAST(Isolated AS nchar(1)) + CAST(Suspended AS nchar(1)) + Queue + NCHAR(1) + JobName
                + NCHAR(1) + CAST(Priority AS nvarchar(6))
            AS nvarchar(394)
        ) END PERSISTED,

        -- The slot. Attempt counts its claims, less those given back. Losses: runs in
        -- a row that lost their lock. Isolated: two or more of them.
        SlotNo             bigint           NOT NULL CONSTRAINT DF_Jobs_SlotNo DEFAULT 1,
        NextRunTime        datetime2(6)     NOT NULL,       -- nominal; changes when the slot ends
        NotBefore          datetime2(6)     NULL,           -- by backoff, snooze, run-now
        DueAt              AS COALESCE(NotBefore, NextRunTime) PERSISTED NOT NULL,
        SlotStartedAt      datetime2(6)     NULL,           -- its first claim
        LastRunTime        datetime2(6)     NULL,
        Attempt            int              NOT NULL CONSTRAINT DF_Jobs_Attempt DEFAULT 0,
        PausedAt           datetime2(6)     NULL,
        DeadAt             datetime2(6)     NULL,
        Losses             int              NOT NULL CONSTRAINT DF_Jobs_Losses DEFAULT 0,
        Isolated           bit              NOT NULL CONSTRAINT DF_Jobs_Isolated DEFAULT 0,
        CancelSlot         bigint           NULL,           -- = SlotNo: this slot is cancelled

        -- Durable functions: see 005. A child has the step of the job that waits for its end, and
        -- its place among the step's children.
        Suspended          bit              NOT NULL CONSTRAINT DF_Jobs_Suspended DEFAULT 0,
        WakeSeq            bigint           NOT NULL CONSTRAINT DF_Jobs_WakeSeq DEFAULT 0,
        Steps              int              NOT NULL CONSTRAINT DF_Jobs_Steps DEFAULT 0,
        ParentId           uniqueidentifier NULL,
        ParentSlot         bigint           NULL,
        ParentStep         nvarchar(420) COLLATE Latin1_General_100_BIN2 NULL,
        ParentNth          int              NULL,

        -- The claim.
        LockedBy           nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL,
        LockedAt           datetime2(6)     NULL,           -- heartbeats do not change it
        HeartbeatAt        datetime2(6)     NULL,
        ClaimTimeoutMs     bigint           NULL,           -- copied at the claim
        LockExpiresAt      datetime2(6)     NULL,           -- HeartbeatAt + ClaimTimeoutMs
        ClaimToken         uniqueidentifier NULL,
        Fence              bigint           NOT NULL CONSTRAINT DF_Jobs_Fence DEFAULT 0,
        Progress           nvarchar(max)    NULL,

        -- SQL Server sorts ids by their last bytes, which are random: as the clustered key they
        -- would split pages all the time. Rows are stored in the order of insertion.
        RowNo              bigint           NOT NULL IDENTITY(1, 1),

        CONSTRAINT PK_Jobs PRIMARY KEY NONCLUSTERED (Id),
        CONSTRAINT UQ_Jobs_RowNo UNIQUE CLUSTERED (RowNo),
        -- Names have no control characters: they are printed.
        CONSTRAINT CK_Jobs_NamesArePrintable CHECK (
            JobName + Queue + COALESCE(JobKey, N'')
            NOT LIKE N'%[' + NCHAR(1) + N'-' + NCHAR(31)
                + NCHAR(127) + N'-' + NCHAR(159) + N']%' COLLATE Latin1_General_100_BIN2
        ),
        CONSTRAINT CK_Jobs_Priority CHECK (Priority BETWEEN 0 AND 9),
        -- The size is that of the largest setting of limits.arguments, two bytes per character.
        CONSTRAINT CK_Jobs_Args CHECK (ISJSON(Args) = 1 AND DATALENGTH(Args) <= 32000000),
        CONSTRAINT CK_Jobs_Headers CHECK (
            ISJSON(Headers) = 1 AND DATALENGTH(Headers) <= 32000000
        ),
        CONSTRAINT CK_Jobs_Limits CHECK (
            LEN(LimitKey) > 0 AND (Limits IS NULL OR (LimitKey IS NOT NULL AND ISJSON(Limits) = 1))
        ),
        CONSTRAINT CK_Jobs_MaxAttempts CHECK (MaxAttempts > 0),
        -- A value that a worker could not compute with would stop the claims beside its own. Times
        -- are from 1970 to 8999, durations at most a hundred years.
        CONSTRAINT CK_Jobs_LockTimeout CHECK (
            LockTimeoutMinutes BETWEEN 0 AND 52596000
            AND (LockTimeoutMs IS NULL OR LockTimeoutMs BETWEEN 500 AND 3155760000000)
        ),
        CONSTRAINT CK_Jobs_Interval CHECK (
            IntervalMinutes BETWEEN 0 AND 52596000
            AND (IntervalMs IS NULL OR IntervalMs BETWEEN 10 AND 3155760000000)
        ),
        CONSTRAINT CK_Jobs_NextRunTime CHECK (
            NextRunTime >= CONVERT(datetime2(6), '1970-01-01', 126)
            AND NextRunTime < CONVERT(datetime2(6), '9000-01-01', 126)
        ),
        CONSTRAINT CK_Jobs_NotBefore CHECK (
            NotBefore >= CONVERT(datetime2(6), '1970-01-01', 126)
            AND NotBefore < CONVERT(datetime2(6), '9000-01-01', 126)
        ),
        CONSTRAINT CK_Jobs_CreatedAt CHECK (
            CreatedAt >= CONVERT(datetime2(6), '1970-01-01', 126)
            AND CreatedAt < CONVERT(datetime2(6), '9000-01-01', 126)
        ),
        CONSTRAINT CK_Jobs_SlotStartedAt CHECK (
            SlotStartedAt >= CONVERT(datetime2(6), '1970-01-01', 126)
            AND SlotStartedAt < CONVERT(datetime2(6), '9000-01-01', 126)
        ),
        CONSTRAINT CK_Jobs_LastRunTime CHECK (
            LastRunTime >= CONVERT(datetime2(6), '1970-01-01', 126)
            AND LastRunTime < CONVERT(datetime2(6), '9000-01-01', 126)
        ),
        CONSTRAINT CK_Jobs_ClaimTimeout CHECK (ClaimTimeoutMs BETWEEN 1 AND 3155760000001),
        CONSTRAINT CK_Jobs_Counts CHECK (
            SlotNo BETWEEN 0 AND 1000000000000000000 AND Fence BETWEEN 0 AND 1000000000000000000
            AND Attempt BETWEEN 0 AND 2000000000 AND Losses BETWEEN 0 AND 2000000000
            AND CancelSlot BETWEEN 0 AND 1000000000000000000
        ),
        CONSTRAINT CK_Jobs_Schedule CHECK (
            (Recurring = 0 AND Schedule IS NULL)
            OR (
                Recurring = 1
                AND (Schedule IS NOT NULL OR IntervalMs IS NOT NULL OR IntervalMinutes > 0)
            )
        ),
        CONSTRAINT CK_Jobs_LockIsWhole CHECK (
            (
                LockedBy IS NULL AND LockedAt IS NULL
                AND HeartbeatAt IS NULL AND LockExpiresAt IS NULL
            )
            OR (
                LockedBy IS NOT NULL AND LockedAt IS NOT NULL
                AND HeartbeatAt IS NOT NULL AND LockExpiresAt IS NOT NULL
            )
        ),
        CONSTRAINT CK_Jobs_ParentIsWhole CHECK (
            (
                ParentId IS NULL AND ParentSlot IS NULL
                AND ParentStep IS NULL AND ParentNth IS NULL
            )
            OR (
                ParentId IS NOT NULL AND ParentSlot IS NOT NULL
                AND ParentStep IS NOT NULL AND ParentNth IS NOT NULL
            )
        )
    );

    -- A filter that says IS NULL, or IN, does not tell SQL Server what the column holds: if it is
    -- neither key nor included, each row is looked up. So the columns of filters are included, and
    -- what the statements compare beside them. Queries must repeat the conditions of a filter.

    -- Two schedules, or two one-offs with a key, of one task never share a key. There are two
    -- indexes, because a filter cannot contain OR.
    CREATE UNIQUE NONCLUSTERED INDEX UX_Jobs_NameAndKey ON reltask.Jobs (JobName, JobKey)
        WHERE JobKey IS NOT NULL;
    CREATE UNIQUE NONCLUSTERED INDEX UX_Jobs_Name ON reltask.Jobs (JobName)
        INCLUDE (JobKey, Recurring)
        WHERE JobKey IS NULL AND Recurring = 1;

    -- For claims: one lane per (Isolated, queue, task, priority), in order of due time. RowNo,
    -- which leads to the row, is part of every index.
    CREATE NONCLUSTERED INDEX IX_Jobs_Polling
        ON reltask.Jobs (Isolated, Queue, JobName, Priority, DueAt)
        INCLUDE (LockedBy, PausedAt, DeadAt, LimitKey)
        WHERE LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NULL;

    -- For claims of jobs with a limit: the same lanes, for each key by itself; and the claimed
    -- ones, to count them again.
    CREATE NONCLUSTERED INDEX IX_Jobs_Limited ON reltask.Jobs (LimitKey, LimitLane, DueAt)
        INCLUDE (LockedBy, PausedAt, DeadAt)
        WHERE LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NOT NULL;
    CREATE NONCLUSTERED INDEX IX_Jobs_Holding ON reltask.Jobs (LimitKey)
        INCLUDE (LockedBy, Limits)
        WHERE LockedBy IS NOT NULL AND LimitKey IS NOT NULL;

    -- For lists of jobs with a limit, whatever their key: by queue and task, in order of due time.
    CREATE NONCLUSTERED INDEX IX_Jobs_LimitedDue ON reltask.Jobs (Queue, JobName, DueAt)
        INCLUDE (LockedBy, PausedAt, DeadAt, LimitKey)
        WHERE LockedBy IS NULL AND PausedAt IS NULL AND DeadAt IS NULL AND LimitKey IS NOT NULL;

    -- The next lock expiry, and the jobs that one worker holds.
    CREATE NONCLUSTERED INDEX IX_Jobs_Expiring ON reltask.Jobs (LockExpiresAt) INCLUDE (LockedBy)
        WHERE LockedBy IS NOT NULL;
    CREATE NONCLUSTERED INDEX IX_Jobs_Held ON reltask.Jobs (LockedBy)
        INCLUDE (Id, Fence, ClaimToken)
        WHERE LockedBy IS NOT NULL;

    -- The children of a job.
    CREATE NONCLUSTERED INDEX IX_Jobs_Children ON reltask.Jobs (ParentId, ParentSlot)
        INCLUDE (LockedBy, SlotNo, CancelSlot)
        WHERE ParentId IS NOT NULL;

    -- For lists of dead jobs.
    CREATE NONCLUSTERED INDEX IX_Jobs_Dead ON reltask.Jobs (DeadAt) WHERE DeadAt IS NOT NULL;

    -- For lists of paused, suspended and recurring jobs. A job that is none of these pays nothing.
    CREATE NONCLUSTERED INDEX IX_Jobs_Paused ON reltask.Jobs (PausedAt) WHERE PausedAt IS NOT NULL;
    CREATE NONCLUSTERED INDEX IX_Jobs_Suspended ON reltask.Jobs (DueAt) INCLUDE (Suspended)
        WHERE Suspended = 1;
    CREATE NONCLUSTERED INDEX IX_Jobs_Recurring ON reltask.Jobs (JobName, Id) INCLUDE (Recurring)
        WHERE Recurring = 1;

    -- A batch must never lock the whole table.
    ALTER TABLE reltask.Jobs SET (LOCK_ESCALATION = DISABLE);
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
        Worker      nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL,  -- null: skipped, discarded
        Attempt     int              NOT NULL,
        NominalTime datetime2(6)     NOT NULL,
        DueAt       datetime2(6)     NOT NULL,
        ClaimedAt   datetime2(6)     NULL,
        FinishedAt  datetime2(6)     NOT NULL,
        Outcome     nvarchar(16) COLLATE Latin1_General_100_BIN2 NOT NULL,
        Error       nvarchar(max)    NULL,
        Result      nvarchar(max)    NULL,
        Steps       int              NULL,                  -- that its slot had; null: none
        EndsJob     bit              NOT NULL CONSTRAINT DF_Runs_EndsJob DEFAULT 0,  -- row removed
        Priority    smallint         NULL,                  -- of a job that ended, and what it was
        Args        nvarchar(max)    NULL,                  -- given, so that it can be run again;
        Headers     nvarchar(max)    NULL,                  -- NULL: it is not kept

        CONSTRAINT PK_Runs PRIMARY KEY NONCLUSTERED (JobId, Fence),
        CONSTRAINT CK_Runs_Outcome CHECK (Outcome IN (
            N'succeeded', N'cancelled', N'skipped', N'failed', N'snoozed', N'suspended',
            N'released', N'abandoned', N'lost', N'discarded'
        )),
        -- Minutes since 1970 must fit into an int.
        CONSTRAINT CK_Runs_FinishedAt CHECK (
            FinishedAt >= CONVERT(datetime2(6), '1970-01-01', 126)
            AND FinishedAt < CONVERT(datetime2(6), '6000-01-01', 126)
        )
    );

    -- Rows are added at the end, pruned at the beginning and listed backwards: in order of time.
    CREATE CLUSTERED INDEX IX_Runs_Finished ON reltask.Runs (FinishedAt);

    -- Narrow, to find the row from which on there are more than the number to keep.
    CREATE NONCLUSTERED INDEX IX_Runs_Counted ON reltask.Runs (FinishedAt);

    -- Each slot ends exactly once.
    CREATE UNIQUE NONCLUSTERED INDEX UX_Runs_SlotEndsOnce ON reltask.Runs (JobId, SlotNo)
        INCLUDE (Outcome)
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
        Idle        bit              NOT NULL CONSTRAINT DF_Workers_Idle DEFAULT 0,
        StoppedAt   datetime2(6)     NULL,

        CONSTRAINT PK_Workers PRIMARY KEY (Id),
        CONSTRAINT CK_Workers_NamesArePrintable CHECK (
            Id + Host NOT LIKE N'%[' + NCHAR(1) + N'-' + NCHAR(31)
                + NCHAR(127) + N'-' + NCHAR(159) + N']%' COLLATE Latin1_General_100_BIN2
        ),
        CONSTRAINT CK_Workers_Lists CHECK (ISJSON(Queues) = 1 AND ISJSON(Tasks) = 1)
    );
END;

-- Last, the version that this script leads to, and the oldest that may run on it. Newer ones stay.
UPDATE reltask.Meta SET SchemaVersion = 1, OldestVersion = 1, MigratedAt = SYSUTCDATETIME()
WHERE SchemaVersion < 1;
INSERT INTO reltask.Meta (SchemaVersion, OldestVersion)
SELECT 1, 1 WHERE NOT EXISTS (SELECT 1 FROM reltask.Meta WITH (UPDLOCK, HOLDLOCK));

COMMIT TRANSACTION;
