-- Purpose       the last statement of a transaction that completes nothing: hold the claim until the commit.
-- Precondition  id, owner and fence still match; otherwise nothing is changed, and the transaction must be rolled back.
-- Lock order    one row, taken last in its transaction, so that heartbeats and reclaims are not kept waiting.

update reltask.jobs
set heartbeat_at = coalesce(:now::timestamptz, statement_timestamp()),
    lock_expires_at = coalesce(:now::timestamptz, statement_timestamp()) + claim_timeout_ms * interval '1 millisecond'
where id = :id::uuid and fence = :fence::bigint and locked_by = :worker::text
returning id;
