-- Purpose       Last statement of a transaction that completes nothing: keep the claim until the
--               commit.
-- Precondition  The job's row still has this id, owner and fence. Otherwise no row is returned, and
--               the transaction must be rolled back.
-- Lock order    The transaction has SQLite's write lock already.
-- Returns       One row with the id, if the claim still holds.
-- See           SQL.md: one writer, fence.

update reltask_jobs
set heartbeat_at = :now,
    lock_expires_at = :now + claim_timeout_ms * 1000
where id = :id and fence = :fence and locked_by = :worker
returning id;
