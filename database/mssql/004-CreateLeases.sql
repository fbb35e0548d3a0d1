-- Leases, metrics, and a mark for dead workers. Run it after 001, as the same user. It can be run
-- again: an existing table stays as it is.
--
-- Version 4; code of version 4 or newer may run on it: no earlier one was released.
--
-- Leases        one row per name: holder, term, expiry; never deleted, so that the term grows
-- LeaseWaiters  which candidates wait for which lease: only a hint about the next try
-- Metrics       the ledger counted by minute and task; kept longer than the ledger's rows
-- Workers       gets DeadAt: when it was noticed that AliveUntil had passed

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET QUOTED_IDENTIFIER ON;
SET ANSI_NULLS ON;

BEGIN TRANSACTION;

IF OBJECT_ID(N'reltask.Leases', N'U') IS NULL
BEGIN
    CREATE TABLE reltask.Leases (
        Name        nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        Holder      nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL,  -- null: given back
        Acquisition uniqueidentifier NULL,                  -- which of the holder's tries
        Term        bigint           NOT NULL,              -- + 1 at every acquisition
        AcquiredAt  datetime2(6)     NOT NULL,
        HeartbeatAt datetime2(6)     NOT NULL,
        TtlMs       bigint           NOT NULL,
        ExpiresAt   datetime2(6)     NOT NULL,              -- or when it was given back
        Metadata    nvarchar(max)    NOT NULL CONSTRAINT DF_Leases_Metadata DEFAULT N'{}',

        CONSTRAINT PK_Leases PRIMARY KEY (Name),
        CONSTRAINT CK_Leases_Ttl CHECK (TtlMs BETWEEN 1 AND 3155760000000),
        CONSTRAINT CK_Leases_Metadata CHECK (ISJSON(Metadata) = 1),
        CONSTRAINT CK_Leases_HolderIsWhole CHECK (
            (Holder IS NULL AND Acquisition IS NULL)
            OR (Holder IS NOT NULL AND Acquisition IS NOT NULL)
        )
    );
END;

IF OBJECT_ID(N'reltask.LeaseWaiters', N'U') IS NULL
BEGIN
    CREATE TABLE reltask.LeaseWaiters (
        Name         nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,  -- of the lease
        Holder       nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
        WaitingUntil datetime2(6)    NOT NULL,

        CONSTRAINT PK_LeaseWaiters PRIMARY KEY (Name, Holder)
    );
END;

IF OBJECT_ID(N'reltask.Metrics', N'U') IS NULL
BEGIN
    CREATE TABLE reltask.Metrics (
        Minute      datetime2(6)     NOT NULL,              -- when the runs ended
        JobName     nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
        Succeeded   bigint           NOT NULL,
        Failed      bigint           NOT NULL,              -- failed, lost and abandoned
        Seconds     float            NOT NULL,              -- sum, from claim to end
        SecondsMost float            NOT NULL,
        Late        float            NOT NULL,              -- sum, from due time to claim
        LateMost    float            NOT NULL,

        CONSTRAINT PK_Metrics PRIMARY KEY (Minute, JobName)
    );
END;

IF NOT EXISTS (
    SELECT 1
    FROM sys.columns
    WHERE object_id = OBJECT_ID(N'reltask.Workers', N'U') AND name = N'DeadAt'
)
    ALTER TABLE reltask.Workers ADD DeadAt datetime2(6) NULL;

-- Last, the version that this script leads to, and the oldest that may run on it. Newer ones stay.
UPDATE reltask.Meta SET SchemaVersion = 4, OldestVersion = 4, MigratedAt = SYSUTCDATETIME()
WHERE SchemaVersion < 4;

COMMIT TRANSACTION;
