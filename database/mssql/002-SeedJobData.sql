-- A sample: one recurring job of the task "SampleTask", every ten minutes, due at once, with a lock
-- timeout of two minutes. It can be run again without effect. A worker claims the job if its app
-- has a task of that name, as the sample app has:
--
--     reltask worker reltask.sample:app
--
-- Insert your own jobs in the same way. All other columns, such as id, queue and interval, have
-- defaults.

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

SELECT Id, JobName, NextRunTime, LastRunTime, LockedBy, LockedAt, LockTimeoutMinutes,
       IntervalMinutes
FROM reltask.Jobs
WHERE JobName = N'SampleTask';
