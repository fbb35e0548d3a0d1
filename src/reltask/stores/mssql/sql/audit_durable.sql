-- Purpose       Find contradictions in what durable functions have recorded, and suspended jobs
--               that nothing will wake.
-- Precondition  None. Reads one snapshot if READ_COMMITTED_SNAPSHOT is on, as on Azure SQL. If it
--               is off, a job that changes meanwhile may look broken: run the audit again.
-- Lock order    Keeps no locks.
-- Returns       One row per finding; none if the records are sound.
-- Parameters    As of audit_slots.sql.
-- See           SQL.md: nullable now, T-SQL batch, duration in minutes, mark.
--
--     step-stray           a step of a slot that never existed, or written after the slot's end
--     steps-miscounted     the job's row has another number of steps than there are
--     signal-lost          consumed by a step that has not recorded it
--     signal-twice         a step has consumed several signals
--     children-miscounted  a step does not wait for as many children as there are, those included
--                          whose end has left a mark that is not folded yet
--     never-wakes          suspended and not due, and each of its waiting steps has what it waits
--                          for, or will never get it
--
-- A body may cancel a wait, and its step waits for ever; so the job must have one step left that
-- can wake it, not all of them. A job with a mark is going to be looked at.

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
    job AS (
        SELECT Id, JobName, JobKey, SlotNo, Fence, Steps, Suspended, DueAt
        FROM reltask.Jobs
        WHERE Id > @after AND Id <= @upto
    ),

    step AS (
        SELECT JobId, SlotNo, Name, Kind, State, Fence, RecordedAt, WakeAt, Signal, Pending
        FROM reltask.Steps
        WHERE JobId > @after AND JobId <= @upto
    ),

    mark AS (
        SELECT Kind, JobId, SlotNo, Name
        FROM reltask.Marks
        WHERE JobId > @after AND JobId <= @upto
    ),

    ended AS (
        SELECT JobId, SlotNo, Fence, Steps
        FROM reltask.Runs
        WHERE JobId > @after AND JobId <= @upto
          AND Outcome IN (N'succeeded', N'cancelled', N'skipped', N'discarded')
    ),

    stray AS (
        SELECT DISTINCT step.JobId, step.SlotNo, step.Name
        FROM step
        LEFT JOIN job ON job.Id = step.JobId
        LEFT JOIN ended ON ended.JobId = step.JobId AND ended.SlotNo = step.SlotNo
        WHERE CASE WHEN step.SlotNo = job.SlotNo
                   THEN CASE WHEN step.Fence > job.Fence THEN 1 END
                   WHEN step.SlotNo > job.SlotNo THEN 1
                   WHEN ended.Fence IS NOT NULL
                   THEN CASE WHEN step.Fence > ended.Fence THEN 1 END
                   WHEN step.RecordedAt > @kept_since THEN 1 END = 1
    ),

    miscounted AS (
        SELECT job.Id AS JobId, job.SlotNo
        FROM job
        LEFT JOIN (
            SELECT JobId, SlotNo, COUNT(*) AS Steps
            FROM step
            GROUP BY JobId, SlotNo
        ) AS recorded ON recorded.JobId = job.Id AND recorded.SlotNo = job.SlotNo
        WHERE job.Steps <> COALESCE(recorded.Steps, 0)
    ),

    -- Of slots that are current, or have an end in the ledger: others may be half pruned.
    consumed AS (
        SELECT signal.JobId, signal.SlotNo, signal.Name, signal.ConsumedBy
        FROM reltask.Signals AS signal
        WHERE signal.JobId > @after AND signal.JobId <= @upto
          AND signal.ConsumedBy IS NOT NULL
          AND (
              EXISTS (
                  SELECT 1
                  FROM job
                  WHERE job.Id = signal.JobId AND job.SlotNo = signal.SlotNo
              )
              OR EXISTS (
                  SELECT 1
                  FROM ended
                  WHERE ended.JobId = signal.JobId AND ended.SlotNo = signal.SlotNo
                    AND ended.Steps IS NOT NULL
              )
          )
    ),

    -- A step that has ended may have marks left that are not folded yet, and must have no child
    -- left.
    family AS (
        SELECT part.JobId, part.SlotNo, part.Name
        FROM (
            SELECT JobId, SlotNo, Name, 1 AS Waits, Pending, 0 AS Children, 0 AS Marks
            FROM step
            WHERE Kind = N'run' AND State = N'waiting'
            UNION ALL
            SELECT ParentId, ParentSlot, ParentStep, 0, 0, 1, 0
            FROM reltask.Jobs
            WHERE ParentId IS NOT NULL AND ParentId > @after AND ParentId <= @upto
            UNION ALL
            SELECT JobId, SlotNo, Name, 0, 0, 0, 1
            FROM mark
            WHERE Kind = N'child'
        ) AS part
        JOIN job ON job.Id = part.JobId AND job.SlotNo = part.SlotNo
        GROUP BY part.JobId, part.SlotNo, part.Name
        HAVING (
            MAX(part.Waits) = 1
            AND SUM(part.Pending) <> SUM(part.Children) + SUM(part.Marks)
        )
            OR (MAX(part.Waits) = 0 AND SUM(part.Children) > 0)
    ),

    -- The steps that can still wake their job.
    hopeful AS (
        SELECT step.JobId, step.SlotNo
        FROM step
        WHERE step.State = N'waiting'
          AND (step.WakeAt IS NULL OR step.WakeAt > @now)
          AND NOT EXISTS (
              SELECT 1
              FROM reltask.Signals AS signal
              WHERE signal.JobId = step.JobId AND signal.SlotNo = step.SlotNo
                AND signal.Name = step.Signal AND signal.ConsumedBy IS NULL
          )
          AND (
              step.Kind <> N'run'
              OR EXISTS (
                  SELECT 1
                  FROM reltask.Jobs AS child
                  WHERE child.ParentId IS NOT NULL AND child.ParentId = step.JobId
                    AND child.ParentSlot = step.SlotNo AND child.ParentStep = step.Name
              )
          )
    ),

    asleep AS (
        SELECT job.Id AS JobId, job.SlotNo
        FROM job
        WHERE job.Suspended = 1 AND job.DueAt > @now
          AND NOT EXISTS (SELECT 1 FROM mark WHERE mark.JobId = job.Id)
          AND NOT EXISTS (
              SELECT 1
              FROM hopeful
              WHERE hopeful.JobId = job.Id AND hopeful.SlotNo = job.SlotNo
          )
    ),

    findings AS (
        SELECT N'step-stray' AS Kind, JobId, SlotNo, Name
        FROM stray
        UNION ALL
        SELECT N'steps-miscounted', JobId, SlotNo, NULL
        FROM miscounted
        UNION ALL
        SELECT N'signal-lost', consumed.JobId, consumed.SlotNo, consumed.Name
        FROM consumed
        WHERE NOT EXISTS (
            SELECT 1
            FROM step
            WHERE step.JobId = consumed.JobId AND step.SlotNo = consumed.SlotNo
              AND step.Name = consumed.ConsumedBy AND step.Signal = consumed.Name
              AND step.State = N'done'
        )
        UNION ALL
        SELECT N'signal-twice', JobId, SlotNo, ConsumedBy
        FROM consumed
        GROUP BY JobId, SlotNo, ConsumedBy
        HAVING COUNT(*) > 1
        UNION ALL
        SELECT N'children-miscounted', JobId, SlotNo, Name
        FROM family
        UNION ALL
        SELECT N'never-wakes', JobId, SlotNo, NULL
        FROM asleep
    ),

    -- A job whose row has gone is named by its history.
    named AS (
        SELECT findings.Kind, findings.JobId, findings.SlotNo, findings.Name,
               COALESCE(job.JobName, run.JobName, N'?') AS JobName,
               COALESCE(job.JobKey, run.JobKey) AS JobKey, run.SlotNo AS StartsAt
        FROM findings
        LEFT JOIN job ON job.Id = findings.JobId
        OUTER APPLY (
            SELECT TOP (1) run.JobName, run.JobKey, run.SlotNo
            FROM reltask.Runs AS run
            WHERE run.JobId = findings.JobId
            ORDER BY run.Fence
        ) AS run
    )

    SELECT TOP (@limit)
           named.Kind AS kind, named.JobId AS job_id, named.JobName AS task,
           named.JobKey AS [key], named.SlotNo AS first_no, named.SlotNo AS last_no,
           named.StartsAt AS starts_at, named.Name AS name
    FROM named
    WHERE @task IS NULL OR named.JobName = @task
    ORDER BY named.JobName, named.JobId, named.SlotNo, named.Kind, named.Name;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
