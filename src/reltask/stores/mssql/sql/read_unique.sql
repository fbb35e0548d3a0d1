-- Purpose       Read which jobs have, or had last, these keys of unique tasks.
-- Precondition  None. Reads only what the role reltask_enqueue may read.
-- Lock order    Locks nothing.
-- Returns       One row per key that was ever taken: task, key, and the job's id.
-- See           SQL.md: T-SQL batch, JSON batch.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @names nvarchar(max) = :names;
DECLARE @given TABLE (
    JobName   nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    UniqueKey nvarchar(64) COLLATE Latin1_General_100_BIN2 NOT NULL
);

BEGIN TRY
    INSERT INTO @given (JobName, UniqueKey)
    SELECT name.task, name.[key]
    FROM OPENJSON(@names) WITH (task nvarchar(256) '$.task', [key] nvarchar(64) '$.key') AS name;

    SELECT held.JobName AS task, held.UniqueKey AS [key], held.JobId AS id
    FROM @given AS given
    JOIN reltask.Keys AS held WITH (INDEX (PK_Keys), FORCESEEK)
        ON held.JobName = given.JobName AND held.UniqueKey = given.UniqueKey;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
