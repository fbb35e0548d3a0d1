-- A sample: one recurring job of the task "SampleTask", every ten minutes, due at once, with a lock timeout of two
-- minutes. Running it again changes nothing. Workers claim it if their app has a task of that name, as the sample has:
--
--     reltask worker reltask.sample:app
--
-- Your own jobs are made in the same way: the id, the queue, the interval and all else have defaults.

SET NOCOUNT ON;
SET QUOTED_IDENTIFIER ON;
SET ANSI_NULLS ON;

INSERT INTO reltask.Jobs (JobName, NextRunTime, LockTimeoutMinutes, IntervalMinutes)
SELECT N'SampleTask', SYSUTCDATETIME(), 2, 10
WHERE NOT EXISTS (
    SELECT 1
    FROM reltask.Jobs WITH (UPDLOCK, HOLDLOCK)
    WHERE JobName = N'SampleTask' AND JobKey IS NULL AND Recurring = 1
);

SELECT Id, JobName, NextRunTime, LastRunTime, LockedBy, LockedAt, LockTimeoutMinutes, IntervalMinutes
FROM reltask.Jobs
WHERE JobName = N'SampleTask';
