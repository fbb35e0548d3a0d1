-- Purpose       the last statement of a transaction that completes nothing: hold the claim until the commit.
-- Precondition  id, owner and fence still match; otherwise nothing is changed, and the transaction must be rolled back.
-- Lock order    the transaction holds the only write lock already.

update reltask_jobs
set heartbeat_at = :now, lock_expires_at = :now + claim_timeout_ms * 1000
where id = :id and fence = :fence and locked_by = :worker
returning id;
