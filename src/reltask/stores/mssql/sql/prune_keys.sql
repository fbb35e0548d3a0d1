-- Purpose       Remove keys of unique tasks whose job is gone and whose time is over.
-- Precondition  The key is one of the :limit keys after (:task, :key).
-- Lock order    The keys; locked ones are skipped.
-- Returns       One row: the number of removed keys, and the last key that was looked at, or nulls
--               if there were fewer than :limit.
-- See           SQL.md: nullable now, skip locked, T-SQL batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @task nvarchar(256) = :task,
        @key nvarchar(64) = :key,
        @limit int = :limit;
DECLARE @removed int;
DECLARE @seen TABLE (
    JobName   nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    UniqueKey nvarchar(64) COLLATE Latin1_General_100_BIN2 NOT NULL,
    JobId     uniqueidentifier NOT NULL
);

BEGIN TRY
    INSERT INTO @seen (JobName, UniqueKey, JobId)
    SELECT TOP (@limit) held.JobName, held.UniqueKey, held.JobId
    FROM reltask.Keys AS held WITH (INDEX (PK_Keys), READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE held.JobName > @task OR (held.JobName = @task AND held.UniqueKey > @key)
    ORDER BY held.JobName, held.UniqueKey;

    DELETE held
    FROM @seen AS seen
    JOIN reltask.Keys AS held
        WITH (INDEX (PK_Keys), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
        ON held.JobName = seen.JobName AND held.UniqueKey = seen.UniqueKey
    WHERE held.JobId = seen.JobId AND (held.TakenUntil IS NULL OR held.TakenUntil <= @now)
      AND NOT EXISTS (
          SELECT 1
          FROM reltask.Jobs AS job WITH (INDEX (PK_Jobs), FORCESEEK)
          WHERE job.Id = seen.JobId
      )
    OPTION (LOOP JOIN, FORCE ORDER);
    SET @removed = @@ROWCOUNT;

    SELECT @removed AS removed, last.JobName AS task, last.UniqueKey AS [key]
    FROM (SELECT 1 AS Always) AS header
    OUTER APPLY (
        SELECT TOP (1) seen.JobName, seen.UniqueKey
        FROM @seen AS seen
        WHERE (SELECT COUNT(*) FROM @seen) = @limit
        ORDER BY seen.JobName DESC, seen.UniqueKey DESC
    ) AS last;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
