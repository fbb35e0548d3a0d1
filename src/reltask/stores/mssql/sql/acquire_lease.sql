-- Purpose       Acquire a free lease with the next term, or report this candidate's rank.
-- Precondition  The lease was never held, was given back, or has expired by the database's clock.
--               An acquisition that is sent again because its answer was lost keeps its term and is
--               renewed.
-- Lock order    The lease's guard, exclusive and without waiting (see guard_lease.sql); then its
--               row, then rows of waiters. Never waits for an open transaction of the leader: that
--               holds the guard in share mode, and then the lease is not free yet. Of two
--               candidates that would insert the row, one has the guard.
-- Returns       One row: the term (null if refused), the database's time, when the lease expires,
--               this candidate's rank, and the number of waiters.
-- See           SQL.md: nullable now, T-SQL batch, duration in minutes.
--
-- A candidate that finds the lease held only reads, and locks nothing. The UPDATE repeats the
-- condition of that read: a heartbeat in between moves ExpiresAt beyond @now.

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
        @lease nvarchar(128) = :lease,
        @holder nvarchar(256) = :holder,
        @acquisition uniqueidentifier = :acquisition,
        @ttl_ms bigint = :ttl_ms,
        @waits bigint = :waits;
DECLARE @guard nvarchar(255) = N'reltask.lease ' + @lease,
        @locked int = -1,
        @expires_at datetime2(6) = DATEADD(
            MILLISECOND, @ttl_ms % 60000,
            DATEADD(MINUTE, @ttl_ms / 60000, @now)
        ),
        @waits_until datetime2(6) = DATEADD(
            MICROSECOND, @waits % 60000000,
            DATEADD(MINUTE, @waits / 60000000, @now)
        ),
        @lasts_until datetime2(6) = DATEADD(
            MICROSECOND, @waits / 2 % 60000000,
            DATEADD(MINUTE, @waits / 120000000, @now)
        );
DECLARE @won TABLE (Term bigint NOT NULL, ExpiresAt datetime2(6) NOT NULL);

BEGIN TRY
    IF NOT EXISTS (
        SELECT 1
        FROM reltask.Leases WITH (INDEX (PK_Leases), FORCESEEK)
        WHERE Name = @lease AND Holder IS NOT NULL AND ExpiresAt > @now
          AND Acquisition <> @acquisition
    )
    BEGIN
        BEGIN TRANSACTION;

        EXEC @locked = sp_getapplock
            @Resource = @guard,
            @LockMode = N'Exclusive',
            @LockOwner = N'Transaction',
            @LockTimeout = 0;

        IF @locked >= 0
        BEGIN
            UPDATE lease
            SET Term = CASE WHEN lease.Acquisition = @acquisition AND lease.ExpiresAt > @now
                            THEN lease.Term ELSE lease.Term + 1 END,
                AcquiredAt = CASE WHEN lease.Acquisition = @acquisition AND lease.ExpiresAt > @now
                                  THEN lease.AcquiredAt ELSE @now END,
                Metadata = CASE WHEN lease.Acquisition = @acquisition AND lease.ExpiresAt > @now
                                THEN lease.Metadata ELSE N'{}' END,
                Holder = @holder,
                Acquisition = @acquisition,
                HeartbeatAt = @now,
                TtlMs = @ttl_ms,
                ExpiresAt = @expires_at
            OUTPUT inserted.Term, inserted.ExpiresAt INTO @won (Term, ExpiresAt)
            FROM reltask.Leases AS lease
                WITH (INDEX (PK_Leases), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
            WHERE lease.Name = @lease
              AND (
                  lease.Holder IS NULL OR lease.ExpiresAt <= @now
                  OR lease.Acquisition = @acquisition
              );

            INSERT INTO reltask.Leases WITH (ROWLOCK) (
                Name, Holder, Acquisition, Term, AcquiredAt, HeartbeatAt, TtlMs, ExpiresAt
            )
            OUTPUT inserted.Term, inserted.ExpiresAt INTO @won (Term, ExpiresAt)
            SELECT @lease, @holder, @acquisition, 1, @now, @now, @ttl_ms, @expires_at
            WHERE NOT EXISTS (
                SELECT 1
                FROM reltask.Leases WITH (INDEX (PK_Leases), FORCESEEK)
                WHERE Name = @lease
            );

            -- The holder does not wait any more, and expired waits are removed.
            IF EXISTS (SELECT 1 FROM @won)
                DELETE FROM reltask.LeaseWaiters WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
                WHERE Name = @lease AND (Holder = @holder OR WaitingUntil <= @now);
        END;

        COMMIT TRANSACTION;
    END;

    -- Refused: this candidate waits, if it wants to. A wait that lasts long enough is not written.
    IF @waits IS NOT NULL AND NOT EXISTS (SELECT 1 FROM @won) AND NOT EXISTS (
        SELECT 1
        FROM reltask.LeaseWaiters
        WHERE Name = @lease AND Holder = @holder AND WaitingUntil >= @lasts_until
    )
    BEGIN
        UPDATE reltask.LeaseWaiters
        SET WaitingUntil = @waits_until
        WHERE Name = @lease AND Holder = @holder;

        INSERT INTO reltask.LeaseWaiters WITH (ROWLOCK) (Name, Holder, WaitingUntil)
        SELECT @lease, @holder, @waits_until
        WHERE NOT EXISTS (
            SELECT 1
            FROM reltask.LeaseWaiters WITH (UPDLOCK, HOLDLOCK)
            WHERE Name = @lease AND Holder = @holder
        );
    END;

    SELECT won.Term AS term,
           @now AS now,
           COALESCE(won.ExpiresAt, seen.ExpiresAt, @now) AS expires_at,
           CASE WHEN won.Term IS NULL THEN others.Before ELSE 0 END AS rank,
           CASE WHEN won.Term IS NULL THEN others.Waiting + 1 ELSE 1 END AS waiting
    FROM (
        SELECT COUNT(*) AS Waiting, COUNT(CASE WHEN Holder < @holder THEN 1 END) AS Before
        FROM reltask.LeaseWaiters
        WHERE Name = @lease AND Holder <> @holder AND WaitingUntil > @now
    ) AS others
    LEFT JOIN @won AS won ON 1 = 1
    LEFT JOIN reltask.Leases AS seen WITH (INDEX (PK_Leases), FORCESEEK) ON seen.Name = @lease;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
END CATCH;
