-- Which claims have expired, and what every reltask worker does about them. For a person's eyes: workers reclaim by
-- themselves, and need no help.
--
-- A claim is stale when no heartbeat has arrived for as long as the lock timeout that was copied into the claim:
--
--     LockedBy IS NOT NULL           somebody holds it
--     LockExpiresAt < @now           HeartbeatAt + ClaimTimeoutMs has passed, by the clock of the database
--
-- LockedAt would not do: it says when the claim began, and a long task renews its claim many times.
--
-- Safe beside a living owner: the UPDATE asks again for what the SELECT has seen. A row that was renewed or completed in
-- the meantime no longer matches, because every renewal and every new claim moves LockExpiresAt beyond @now. The hints
-- only keep this from queueing behind rows that somebody is writing just now; nothing depends on them.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET QUOTED_IDENTIFIER ON;
SET ANSI_NULLS ON;

DECLARE @now datetime2(6) = SYSUTCDATETIME();

-- 1. What is stale now.
SELECT Id, JobName, LockedBy, Fence, Attempt, HeartbeatAt, LockExpiresAt
FROM reltask.Jobs
WHERE LockedBy IS NOT NULL AND LockExpiresAt < @now
ORDER BY LockExpiresAt;

-- 2. Taking all of them away by hand, at most 1000 at a time.
DECLARE @expired TABLE (
    Id          uniqueidentifier NOT NULL PRIMARY KEY,
    Fence       bigint           NOT NULL,
    SlotNo      bigint           NOT NULL,
    JobName     nvarchar(256)    NOT NULL,
    JobKey      nvarchar(256)    NULL,
    Queue       nvarchar(128)    NOT NULL,
    LockedBy    nvarchar(256)    NOT NULL,
    Attempt     int              NOT NULL,
    NextRunTime datetime2(6)     NOT NULL,
    DueAt       datetime2(6)     NOT NULL,
    LockedAt    datetime2(6)     NOT NULL
);
DECLARE @freed TABLE (Id uniqueidentifier NOT NULL PRIMARY KEY, Fence bigint NOT NULL, DeadAt datetime2(6) NULL);

BEGIN TRANSACTION;

INSERT INTO @expired (Id, Fence, SlotNo, JobName, JobKey, Queue, LockedBy, Attempt, NextRunTime, DueAt, LockedAt)
SELECT TOP (1000) Id, Fence, SlotNo, JobName, JobKey, Queue, LockedBy, Attempt, NextRunTime, DueAt, LockedAt
FROM reltask.Jobs WITH (READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
WHERE LockedBy IS NOT NULL AND LockExpiresAt < @now
ORDER BY LockExpiresAt;

UPDATE reltask.Jobs
SET DeadAt = CASE WHEN Attempt >= MaxAttempts THEN @now END,
    Losses = Losses + 1,
    Isolated = CASE WHEN Losses > 0 THEN 1 ELSE 0 END,
    LockedBy = NULL,
    LockedAt = NULL,
    HeartbeatAt = NULL,
    ClaimTimeoutMs = NULL,
    LockExpiresAt = NULL,
    ClaimToken = NULL,
    Progress = NULL
OUTPUT inserted.Id, inserted.Fence, inserted.DeadAt INTO @freed (Id, Fence, DeadAt)
WHERE Id IN (SELECT Id FROM @expired)
  AND LockedBy IS NOT NULL AND LockExpiresAt < @now;

INSERT INTO reltask.Runs (
    JobId, Fence, SlotNo, JobName, JobKey, Queue, Worker, Attempt,
    NominalTime, DueAt, ClaimedAt, FinishedAt, Outcome, Error)
SELECT expired.Id, expired.Fence, expired.SlotNo, expired.JobName, expired.JobKey, expired.Queue, expired.LockedBy,
       expired.Attempt, expired.NextRunTime, expired.DueAt, expired.LockedAt, @now, N'lost', N'reclaimed by hand'
FROM @expired AS expired
JOIN @freed AS freed ON freed.Id = expired.Id AND freed.Fence = expired.Fence;

COMMIT TRANSACTION;

SELECT expired.Id, expired.JobName, expired.LockedBy AS TakenFrom, CASE WHEN freed.DeadAt IS NULL THEN 0 ELSE 1 END AS Dead
FROM @expired AS expired
JOIN @freed AS freed ON freed.Id = expired.Id AND freed.Fence = expired.Fence;
