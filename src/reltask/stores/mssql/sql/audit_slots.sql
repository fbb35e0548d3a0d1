-- Purpose       Find gaps and contradictions in the histories of jobs.
-- Precondition  None. Reads one snapshot if READ_COMMITTED_SNAPSHOT is on, as on Azure SQL. If it
--               is off, a job that changes meanwhile may look broken: run the audit again.
-- Lock order    Keeps no locks.
-- Returns       One row per finding; none if the histories are sound.
-- Parameters    :task is null for all tasks; :kept_for is in microseconds, younger history is never
--               pruned; :limit. The slice has the jobs whose ids are greater than :after, up to and
--               including :upto (see audit_slice.sql): for all, write the ids of 0s and of fs.
-- See           SQL.md: nullable now, T-SQL batch, duration in minutes.
--
-- Ordered by fence, each ledger row of a job follows from the one before: its fence is one higher,
-- and its slot is the same if the earlier run left it open, or the next one if the earlier run
-- ended it. The same holds between the newest ledger row and the job's row. A job without a row has
-- ended: its newest ledger row says so.
--
--     ledger    fence 1  slot 1  failed
--               fence 2  slot 1  succeeded     ends slot 1
--               fence 4  slot 3  succeeded     run-missing 3 to 3, slot-lost 2 to 2
--     row       fence 4  slot 4                the next fence would be 5: sound
--
-- Old history may have been pruned, so it may start anywhere. The history of a job younger than
-- :kept_for starts with 1.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @task nvarchar(256) = :task,
        @kept_for bigint = :kept_for,
        @after uniqueidentifier = :after,
        @upto uniqueidentifier = :upto,
        @limit int = :limit;
DECLARE @kept_since datetime2(6) =
    DATEADD(MICROSECOND, -(@kept_for % 60000000), DATEADD(MINUTE, -(@kept_for / 60000000), @now));

BEGIN TRY
    WITH
    run AS (
        SELECT JobId, JobName, JobKey, Fence, SlotNo, EndsJob,
               CASE WHEN Outcome IN (N'succeeded', N'cancelled', N'skipped', N'discarded')
                    THEN SlotNo + 1 ELSE SlotNo END AS SlotAfter
        FROM reltask.Runs
        WHERE JobId > @after AND JobId <= @upto
    ),

    -- Consecutive ledger rows of a job, numbered from both ends.
    steps AS (
        SELECT JobId, JobName, JobKey, Fence, SlotNo, EndsJob, SlotAfter,
               LAG(Fence) OVER (PARTITION BY JobId ORDER BY Fence) + 1 AS FenceDue,
               LAG(SlotAfter) OVER (PARTITION BY JobId ORDER BY Fence) AS SlotDue,
               ROW_NUMBER() OVER (PARTITION BY JobId ORDER BY Fence) AS Nth,
               ROW_NUMBER() OVER (PARTITION BY JobId ORDER BY Fence DESC) AS NthFromLast
        FROM run
    ),

    -- The fence and the slot of a run that begins now.
    job AS (
        SELECT Id, JobName, JobKey, SlotNo, CreatedAt, LastRunTime,
               Fence + CASE WHEN LockedBy IS NULL THEN 1 ELSE 0 END AS Fence
        FROM reltask.Jobs
        WHERE Id > @after AND Id <= @upto
    ),

    -- What was due, and what is there instead; null where there is nothing to compare.
    links AS (
        SELECT JobId, JobName, JobKey, FenceDue, SlotDue, Fence, SlotNo
        FROM steps
        UNION ALL
        -- The job's row. Without one, the current slot is lost, unless the job has ended.
        SELECT newest.JobId, newest.JobName, newest.JobKey, newest.Fence + 1, newest.SlotAfter,
               job.Fence,
               CASE WHEN job.Id IS NOT NULL THEN job.SlotNo
                    WHEN newest.EndsJob = 0 THEN newest.SlotAfter + 1 END
        FROM steps AS newest
        LEFT JOIN job ON job.Id = newest.JobId
        WHERE newest.NthFromLast = 1
        UNION ALL
        -- The first run of jobs too young to have been pruned.
        SELECT job.Id, job.JobName, job.JobKey, 1, 1,
               COALESCE(oldest.Fence, job.Fence), COALESCE(oldest.SlotNo, job.SlotNo)
        FROM job
        LEFT JOIN steps AS oldest ON oldest.JobId = job.Id AND oldest.Nth = 1
        WHERE job.CreatedAt > @kept_since
        UNION ALL
        -- A slot that ended too recently to have been pruned, without any ledger row.
        SELECT job.Id, job.JobName, job.JobKey, NULL, job.SlotNo - 1, NULL, job.SlotNo
        FROM job
        WHERE job.CreatedAt <= @kept_since AND job.LastRunTime > @kept_since
          AND NOT EXISTS (SELECT 1 FROM run WHERE run.JobId = job.Id)
    ),

    broken AS (
        SELECT JobId, JobName, JobKey, FenceDue, SlotDue, Fence, SlotNo
        FROM links
        WHERE Fence <> FenceDue OR SlotNo <> SlotDue
    ),

    twice AS (
        SELECT JobId, SlotNo, MIN(JobName) AS JobName, MIN(JobKey) AS JobKey
        FROM run
        WHERE SlotAfter > SlotNo
        GROUP BY JobId, SlotNo
        HAVING COUNT(*) > 1
    ),

    findings AS (
        SELECT N'slot-twice' AS Kind, JobId, JobName, JobKey, SlotNo AS FirstNo, SlotNo AS LastNo
        FROM twice
        UNION ALL
        SELECT finding.Kind, broken.JobId, broken.JobName, broken.JobKey, finding.FirstNo,
               finding.LastNo
        FROM broken
        CROSS APPLY (
            SELECT N'slot-lost' AS Kind, broken.SlotDue AS FirstNo, broken.SlotNo - 1 AS LastNo
            WHERE broken.SlotNo > broken.SlotDue
            UNION ALL
            SELECT N'slot-reopened', broken.SlotNo, broken.SlotNo
            WHERE broken.SlotNo < broken.SlotDue
              AND NOT EXISTS (
                  SELECT 1
                  FROM twice
                  WHERE twice.JobId = broken.JobId AND twice.SlotNo = broken.SlotNo
              )
            UNION ALL
            SELECT N'run-missing', broken.FenceDue, broken.Fence - 1
            WHERE broken.Fence > broken.FenceDue
            UNION ALL
            SELECT N'fence-behind', broken.Fence, broken.Fence
            WHERE broken.Fence < broken.FenceDue
        ) AS finding
    )

    SELECT TOP (@limit)
           findings.Kind AS kind, findings.JobId AS job_id, findings.JobName AS task,
           findings.JobKey AS [key], findings.FirstNo AS first_no, findings.LastNo AS last_no,
           (
               SELECT TOP (1) run.SlotNo
               FROM run
               WHERE run.JobId = findings.JobId
               ORDER BY run.Fence
           ) AS starts_at
    FROM findings
    WHERE @task IS NULL OR findings.JobName = @task
    ORDER BY findings.JobName, findings.JobId, findings.FirstNo, findings.Kind;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
