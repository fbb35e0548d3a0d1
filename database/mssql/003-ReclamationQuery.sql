-- Which claims have expired, and what every worker does about them. For people: workers reclaim
-- jobs themselves, and need no help.
--
-- A claim has expired when no heartbeat has arrived for the lock timeout that was copied at the
-- claim:
--
--     LockedBy IS NOT NULL           a worker holds the job
--     LockExpiresAt < @now           HeartbeatAt + ClaimTimeoutMs has passed, by database time
--
-- LockedAt is not enough: it is when the claim began, and a long task renews its claim many times.
--
-- This is safe beside a live owner. The UPDATE repeats the condition of the SELECT: a row that was
-- renewed or completed meanwhile no longer matches, because every renewal and every new claim moves
-- LockExpiresAt beyond @now. The hints only avoid waiting for rows that are being written.
-- Correctness does not depend on them.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET QUOTED_IDENTIFIER ON;
SET ANSI_NULLS ON;

DECLARE @now datetime2(6) = SYSUTCDATETIME();

-- 1. The claims that have expired.
SELECT Id, JobName, LockedBy, Fence, Attempt, HeartbeatAt, LockExpiresAt
FROM reltask.Jobs
WHERE LockedBy IS NOT NULL AND LockExpiresAt < @now
ORDER BY LockExpiresAt;

-- 2. Reclaim them by hand, at most 1000 at a time.
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
    LockedAt    datetime2(6)     NOT NULL,
    ParentId    uniqueidentifier NULL,
    ParentSlot  bigint           NULL,
    ParentStep  nvarchar(420)    NULL,
    ParentNth   int              NULL
);
DECLARE @freed TABLE (
    Id     uniqueidentifier NOT NULL PRIMARY KEY,
    Fence  bigint           NOT NULL,
    DeadAt datetime2(6)     NULL
);

BEGIN TRANSACTION;

INSERT INTO @expired (
    Id, Fence, SlotNo, JobName, JobKey, Queue, LockedBy, Attempt, NextRunTime, DueAt, LockedAt,
    ParentId, ParentSlot, ParentStep, ParentNth
)
SELECT TOP (1000)
       Id, Fence, SlotNo, JobName, JobKey, Queue, LockedBy, Attempt, NextRunTime, DueAt, LockedAt,
       ParentId, ParentSlot, ParentStep, ParentNth
FROM reltask.Jobs WITH (READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
WHERE LockedBy IS NOT NULL AND LockExpiresAt < @now
ORDER BY LockExpiresAt;

UPDATE reltask.Jobs
SET DeadAt = CASE WHEN Attempt >= MaxAttempts THEN @now END,
    ParentId = CASE WHEN Attempt >= MaxAttempts THEN NULL ELSE ParentId END,
    ParentSlot = CASE WHEN Attempt >= MaxAttempts THEN NULL ELSE ParentSlot END,
    ParentStep = CASE WHEN Attempt >= MaxAttempts THEN NULL ELSE ParentStep END,
    ParentNth = CASE WHEN Attempt >= MaxAttempts THEN NULL ELSE ParentNth END,
    Losses = Losses + 1,
    Isolated = CASE WHEN Losses > 0 THEN 1 ELSE 0 END,
    LockedBy = NULL,
    LockedAt = NULL,
    HeartbeatAt = NULL,
    ClaimTimeoutMs = NULL,
    LockExpiresAt = NULL,
    ClaimToken = NULL
OUTPUT inserted.Id, inserted.Fence, inserted.DeadAt INTO @freed (Id, Fence, DeadAt)
WHERE Id IN (SELECT Id FROM @expired)
  AND LockedBy IS NOT NULL AND LockExpiresAt < @now;

INSERT INTO reltask.Runs (
    JobId, Fence, SlotNo, JobName, JobKey, Queue, Worker, Attempt,
    NominalTime, DueAt, ClaimedAt, FinishedAt, Outcome, Error
)
SELECT expired.Id, expired.Fence, expired.SlotNo, expired.JobName, expired.JobKey, expired.Queue,
       expired.LockedBy, expired.Attempt, expired.NextRunTime, expired.DueAt, expired.LockedAt,
       @now, N'lost', N'reclaimed by hand'
FROM @expired AS expired
JOIN @freed AS freed ON freed.Id = expired.Id AND freed.Fence = expired.Fence;

-- A child that is dead has ended for the durable function that waits for it.
IF EXISTS (
    SELECT 1
    FROM @expired AS expired
    JOIN @freed AS freed ON freed.Id = expired.Id AND freed.Fence = expired.Fence
    WHERE freed.DeadAt IS NOT NULL AND expired.ParentId IS NOT NULL
)
BEGIN
    INSERT INTO reltask.ChildEnds (
        ParentId, SlotNo, Step, Nth, JobId, Outcome, Error, EndedAt
    )
    SELECT expired.ParentId, expired.ParentSlot, expired.ParentStep, expired.ParentNth, expired.Id,
           N'failed', N'reclaimed by hand', @now
    FROM @expired AS expired
    JOIN @freed AS freed ON freed.Id = expired.Id AND freed.Fence = expired.Fence
    WHERE freed.DeadAt IS NOT NULL AND expired.ParentId IS NOT NULL;

    INSERT INTO reltask.Marks (At, Kind, JobId, SlotNo, Name)
    SELECT @now, N'child', expired.ParentId, expired.ParentSlot, expired.ParentStep
    FROM @expired AS expired
    JOIN @freed AS freed ON freed.Id = expired.Id AND freed.Fence = expired.Fence
    WHERE freed.DeadAt IS NOT NULL AND expired.ParentId IS NOT NULL;
END;

COMMIT TRANSACTION;

SELECT expired.Id, expired.JobName, expired.LockedBy AS TakenFrom,
       CASE WHEN freed.DeadAt IS NULL THEN 0 ELSE 1 END AS Dead
FROM @expired AS expired
JOIN @freed AS freed ON freed.Id = expired.Id AND freed.Fence = expired.Fence;
