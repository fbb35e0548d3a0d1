-- Durable functions. Run it after 004, as the same user. It can be run again: an existing table
-- stays as it is.
--
-- Version 5; code of version 5 or newer may run on it: no earlier one was released.
--
-- Steps      what durable functions have recorded, one row per slot and name; kept as long as the
--            ledger rows of the slot
-- Signals    what was sent to jobs; consumed ones stay until the slot ends, so that none counts
--            twice
-- ChildEnds  how the children of a step ended
-- Marks      jobs that have to be looked at, because a signal came or a child ended; workers fold
--            them
--
-- The name of a step or a signal has at most 200 characters, some of which count twice here, and a
-- step's may end with a number. Rows are stored by job, because they are read by job.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET QUOTED_IDENTIFIER ON;
SET ANSI_NULLS ON;

BEGIN TRANSACTION;

IF OBJECT_ID(N'reltask.Steps', N'U') IS NULL
BEGIN
    CREATE TABLE reltask.Steps (
        JobId       uniqueidentifier NOT NULL,
        SlotNo      bigint           NOT NULL,
        Name        nvarchar(420) COLLATE Latin1_General_100_BIN2 NOT NULL,  -- repeated: #2, #3 …
        Kind        nvarchar(16) COLLATE Latin1_General_100_BIN2 NOT NULL,
        State       nvarchar(16) COLLATE Latin1_General_100_BIN2 NOT NULL,
        Value       nvarchar(max)    NULL,                  -- what the step returned
        Error       nvarchar(max)    NULL,                  -- "Kind: message" of what it raised
        Fingerprint nvarchar(128)    NOT NULL,              -- hash of function and arguments
        Attempt     int              NOT NULL,              -- of the step itself
        Fence       bigint           NOT NULL,              -- of the run that wrote it
        StartedAt   datetime2(6)     NOT NULL,
        RecordedAt  datetime2(6)     NOT NULL,
        WakeAt      datetime2(6)     NULL,                  -- waiting: until when; null: no limit
        Signal      nvarchar(420) COLLATE Latin1_General_100_BIN2 NULL,  -- that a wait waits for
        Pending     int              NOT NULL,              -- run: children that have not ended

        CONSTRAINT PK_Steps PRIMARY KEY (JobId, SlotNo, Name),
        CONSTRAINT CK_Steps_Kind CHECK (Kind IN (
            N'step', N'transact', N'sleep', N'wait', N'run', N'start'
        )),
        CONSTRAINT CK_Steps_State CHECK (State IN (N'waiting', N'done', N'failed'))
    );

    -- A batch must never lock a whole table.
    ALTER TABLE reltask.Steps SET (LOCK_ESCALATION = DISABLE);
END;

IF OBJECT_ID(N'reltask.Signals', N'U') IS NULL
BEGIN
    CREATE TABLE reltask.Signals (
        JobId       uniqueidentifier NOT NULL,
        SlotNo      bigint           NOT NULL,
        Name        nvarchar(420) COLLATE Latin1_General_100_BIN2 NOT NULL,
        Id          nvarchar(400) COLLATE Latin1_General_100_BIN2 NOT NULL,  -- the sender's
        Seq         bigint           NOT NULL IDENTITY(1, 1),
        Value       nvarchar(max)    NOT NULL,
        SentAt      datetime2(6)     NOT NULL,
        ConsumedBy  nvarchar(420) COLLATE Latin1_General_100_BIN2 NULL,  -- the step; null: it waits

        -- Sent twice, a signal counts once.
        CONSTRAINT PK_Signals PRIMARY KEY NONCLUSTERED (JobId, SlotNo, Name, Id),
        CONSTRAINT UQ_Signals_Seq UNIQUE CLUSTERED (JobId, SlotNo, Seq)
    );

    -- For pruning.
    CREATE NONCLUSTERED INDEX IX_Signals_Sent ON reltask.Signals (SentAt);

    ALTER TABLE reltask.Signals SET (LOCK_ESCALATION = DISABLE);
END;

IF OBJECT_ID(N'reltask.ChildEnds', N'U') IS NULL
BEGIN
    CREATE TABLE reltask.ChildEnds (
        ParentId    uniqueidentifier NOT NULL,
        SlotNo      bigint           NOT NULL,              -- the parent's
        Step        nvarchar(420) COLLATE Latin1_General_100_BIN2 NOT NULL,
        Nth         int              NOT NULL,
        JobId       uniqueidentifier NOT NULL,              -- the child
        Outcome     nvarchar(16) COLLATE Latin1_General_100_BIN2 NOT NULL,
        Value       nvarchar(max)    NULL,
        Error       nvarchar(max)    NULL,
        EndedAt     datetime2(6)     NOT NULL,

        CONSTRAINT PK_ChildEnds PRIMARY KEY (ParentId, SlotNo, Step, Nth),
        CONSTRAINT CK_ChildEnds_Outcome CHECK (Outcome IN (
            N'succeeded', N'cancelled', N'discarded', N'failed'
        ))
    );

    -- For pruning.
    CREATE NONCLUSTERED INDEX IX_ChildEnds_Ended ON reltask.ChildEnds (EndedAt);

    ALTER TABLE reltask.ChildEnds SET (LOCK_ESCALATION = DISABLE);
END;

IF OBJECT_ID(N'reltask.Marks', N'U') IS NULL
BEGIN
    -- A mark about a limit has no job. Queue and Task are those of the jobs that it is about, and
    -- Freed the places that became free: see 006. Name is that of the signal, the step, or the key.
    CREATE TABLE reltask.Marks (
        Queue       nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL
                    CONSTRAINT DF_Marks_Queue DEFAULT N'',
        Task        nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL
                    CONSTRAINT DF_Marks_Task DEFAULT N'',
        At          datetime2(6)     NOT NULL,
        Seq         bigint           NOT NULL IDENTITY(1, 1),
        Kind        nvarchar(16) COLLATE Latin1_General_100_BIN2 NOT NULL,
        JobId       uniqueidentifier NULL,
        SlotNo      bigint           NULL,
        Name        nvarchar(420) COLLATE Latin1_General_100_BIN2 NOT NULL,
        Freed       int              NOT NULL CONSTRAINT DF_Marks_Freed DEFAULT 0,

        CONSTRAINT PK_Marks PRIMARY KEY (Queue, Task, At, Seq),
        CONSTRAINT CK_Marks_Kind CHECK (Kind IN (N'signal', N'child', N'limit')),
        CONSTRAINT CK_Marks_AreAboutOneThing CHECK (
            (Kind = N'limit' AND JobId IS NULL AND SlotNo IS NULL AND LEN(Task) > 0)
            OR (
                Kind <> N'limit' AND JobId IS NOT NULL AND SlotNo IS NOT NULL
                AND Queue = N'' AND Task = N'' AND Freed = 0
            )
        ),
        CONSTRAINT CK_Marks_Freed CHECK (Freed BETWEEN -1000000 AND 1000000)
    );

    -- Whether a key has a mark already.
    CREATE NONCLUSTERED INDEX IX_Marks_Keys ON reltask.Marks (Name, Queue, Task)
        INCLUDE (Kind, Freed)
        WHERE Kind = N'limit';

    ALTER TABLE reltask.Marks SET (LOCK_ESCALATION = DISABLE);
END;

-- Last, the version that this script leads to, and the oldest that may run on it. Newer ones stay.
UPDATE reltask.Meta SET SchemaVersion = 5, OldestVersion = 5, MigratedAt = SYSUTCDATETIME()
WHERE SchemaVersion < 5;

COMMIT TRANSACTION;
