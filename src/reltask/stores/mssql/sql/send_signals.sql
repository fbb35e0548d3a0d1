-- Purpose       Store signals for jobs, with a mark each that makes a worker look at the job.
-- Precondition  The job's row exists: by id, or else by task and key. The slot does not have a
--               signal of this name and id yet.
-- Lock order    The inserted signals, then the inserted marks. The jobs are read, and no lock on
--               them is kept, whatever the isolation level: in the sender's own transaction such a
--               lock would keep heartbeats and settlements from the row for as long as that
--               transaction is open. A second session with the same signal waits for the first to
--               commit, and then finds it; so the INSERT is tried again without it.
-- Returns       One row per signal whose job exists, stored now or before: signal_id, and the job's
--               id.
-- See           SQL.md: nullable now, filtered index, lost answer, T-SQL batch, JSON
--               batch, mark.
--
-- A signal that meets the end of its job's slot may be stored for a slot that is over. No run reads
-- it, and prune_records.sql removes it.
--
-- XACT_ABORT is off around the INSERT, because a refused one must not end the caller's own
-- transaction.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @signals nvarchar(max) = :signals;
DECLARE @tries int = 0,
        @done bit = 0;
DECLARE @given TABLE (
    Nth      int NOT NULL PRIMARY KEY,
    SignalId nvarchar(400) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Name     nvarchar(420) COLLATE Latin1_General_100_BIN2 NOT NULL,
    Value    nvarchar(max) NOT NULL,
    JobId    uniqueidentifier NULL,
    JobName  nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL,
    JobKey   nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL
);
DECLARE @found TABLE (
    Nth    int              NOT NULL PRIMARY KEY,
    JobId  uniqueidentifier NOT NULL,
    SlotNo bigint           NOT NULL
);
DECLARE @stored TABLE (
    JobId  uniqueidentifier NOT NULL,
    SlotNo bigint           NOT NULL,
    Name   nvarchar(420)    NOT NULL
);

BEGIN TRY
    INSERT INTO @given (Nth, SignalId, Name, Value, JobId, JobName, JobKey)
    SELECT one.nth, one.id, one.name, one.value, one.job_id, one.task, one.[key]
    FROM OPENJSON(@signals) WITH (
        nth    int              '$.nth',
        id     nvarchar(400)    '$.id',
        name   nvarchar(420)    '$.name',
        value  nvarchar(max)    '$.value',
        job_id uniqueidentifier '$.job_id',
        task   nvarchar(256)    '$.task',
        [key]  nvarchar(256)    '$.key'
    ) AS one;

    -- One SELECT for each of the three unique indexes of jobs.
    INSERT INTO @found (Nth, JobId, SlotNo)
    SELECT given.Nth, job.Id, job.SlotNo
    FROM @given AS given
    JOIN reltask.Jobs AS job WITH (INDEX (PK_Jobs), READCOMMITTED) ON job.Id = given.JobId
    OPTION (LOOP JOIN, FORCE ORDER);

    INSERT INTO @found (Nth, JobId, SlotNo)
    SELECT given.Nth, job.Id, job.SlotNo
    FROM @given AS given
    JOIN reltask.Jobs AS job WITH (INDEX (UX_Jobs_NameAndKey), FORCESEEK, READCOMMITTED)
        ON job.JobName = given.JobName AND job.JobKey = given.JobKey
    WHERE given.JobId IS NULL AND job.JobKey IS NOT NULL
    OPTION (LOOP JOIN, FORCE ORDER);

    INSERT INTO @found (Nth, JobId, SlotNo)
    SELECT given.Nth, job.Id, job.SlotNo
    FROM @given AS given
    JOIN reltask.Jobs AS job WITH (INDEX (UX_Jobs_Name), FORCESEEK, READCOMMITTED)
        ON job.JobName = given.JobName
    WHERE given.JobId IS NULL AND given.JobKey IS NULL
      AND job.JobKey IS NULL AND job.Recurring = 1
    OPTION (LOOP JOIN, FORCE ORDER);

    BEGIN TRANSACTION;

    SET XACT_ABORT OFF;
    WHILE @done = 0
    BEGIN
        BEGIN TRY
            INSERT INTO reltask.Signals WITH (ROWLOCK) (JobId, SlotNo, Name, Id, Value, SentAt)
            OUTPUT inserted.JobId, inserted.SlotNo, inserted.Name INTO @stored (JobId, SlotNo, Name)
            SELECT found.JobId, found.SlotNo, given.Name, given.SignalId, given.Value, @now
            FROM @found AS found
            JOIN @given AS given ON given.Nth = found.Nth
            WHERE NOT EXISTS (
                SELECT 1
                FROM reltask.Signals AS known WITH (INDEX (PK_Signals), READCOMMITTED)
                WHERE known.JobId = found.JobId AND known.SlotNo = found.SlotNo
                  AND known.Name = given.Name AND known.Id = given.SignalId
            )
              AND NOT EXISTS (
                  SELECT 1
                  FROM @found AS same
                  JOIN @given AS earlier ON earlier.Nth = same.Nth
                  WHERE same.JobId = found.JobId AND same.Nth < found.Nth
                    AND earlier.Name = given.Name AND earlier.SignalId = given.SignalId
              )
            ORDER BY found.Nth
            OPTION (LOOP JOIN, FORCE ORDER);
            SET @done = 1;
        END TRY
        BEGIN CATCH
            SET @tries = @tries + 1;
            IF ERROR_NUMBER() NOT IN (2601, 2627) OR XACT_STATE() = -1 OR @tries >= 10 THROW;
            DELETE FROM @stored;
        END CATCH;
    END;
    SET XACT_ABORT ON;

    INSERT INTO reltask.Marks WITH (ROWLOCK) (At, Kind, JobId, SlotNo, Name)
    SELECT @now, N'signal', JobId, SlotNo, Name
    FROM @stored;

    COMMIT TRANSACTION;

    SELECT given.SignalId AS signal_id, found.JobId AS id
    FROM @found AS found
    JOIN @given AS given ON given.Nth = found.Nth;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
