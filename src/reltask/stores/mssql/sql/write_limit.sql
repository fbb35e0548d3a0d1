-- Purpose       Declare a limit, or change one that is declared, and look at the jobs that wait for
--               it.
-- Precondition  There is no limit of this name and :seen is null, or its declaration is :seen.
-- Lock order    The limit's row. No key is locked: claims read the limit when they begin.
-- Returns       One row with the name, if it was written.
-- See           SQL.md: nullable now, T-SQL batch, limit.
--
-- A claim that has begun goes by the old limit, and may let a job go to wait at a key where it is
-- not seen here. So all keys that have been counted are looked at too.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @name nvarchar(100) = :name,
        @running int = :running,
        @rate_count int = :rate_count,
        @rate_period_ms bigint = :rate_period_ms,
        @burst int = :burst,
        @declaration nvarchar(128) = :declaration,
        @app_version nvarchar(128) = :app_version,
        @seen nvarchar(128) = :seen;
DECLARE @written TABLE (Name nvarchar(100) COLLATE Latin1_General_100_BIN2 NOT NULL);

BEGIN TRY
    BEGIN TRANSACTION;

    IF @seen IS NULL
        INSERT INTO reltask.Limits WITH (ROWLOCK) (
            Name, Running, RateCount, RatePeriodMs, Burst, Declaration, AppVersion, ChangedAt
        )
        OUTPUT inserted.Name INTO @written (Name)
        SELECT @name, @running, @rate_count, @rate_period_ms, @burst, @declaration, @app_version,
               @now
        WHERE NOT EXISTS (
            SELECT 1 FROM reltask.Limits WITH (UPDLOCK, HOLDLOCK) WHERE Name = @name
        );
    ELSE
        UPDATE reltask.Limits
        SET Running = @running,
            RateCount = @rate_count,
            RatePeriodMs = @rate_period_ms,
            Burst = @burst,
            Declaration = @declaration,
            AppVersion = @app_version,
            ChangedAt = @now
        OUTPUT inserted.Name INTO @written (Name)
        WHERE Name = @name AND Declaration = @seen;

    INSERT INTO reltask.Marks WITH (ROWLOCK) (Task, At, Kind, Name)
    SELECT N'limit', @now, N'limit', counter.[Key]
    FROM @written AS written
    JOIN reltask.LimitKeys AS counter WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
        ON counter.Name = written.Name
    UNION
    SELECT N'limit', @now, N'limit', job.LimitKey
    FROM @written AS written
    JOIN reltask.Jobs AS job
        WITH (INDEX (IX_Jobs_Limited), READPAST, ROWLOCK, READCOMMITTEDLOCK)
        ON LEFT(job.LimitKey, CHARINDEX(N':', job.LimitKey + N':') - 1) = written.Name
    WHERE job.LockedBy IS NULL AND job.PausedAt IS NULL AND job.DeadAt IS NULL
      AND job.LimitKey IS NOT NULL;

    COMMIT TRANSACTION;

    SELECT Name AS name FROM @written;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
