-- Purpose       Keep the claim until the commit: the last statement of a transaction that completes
--               nothing, or the one before a settlement that has to wait for its row.
-- Precondition  The job's row still has this id, owner and fence. Otherwise no row is returned, and
--               the transaction must be rolled back.
-- Lock order    One row, locked last in its transaction, so that heartbeats and reclaims are not
--               held up. Waits for a locked row, then checks it again.
-- Returns       One row with the id, if the claim still holds.
-- See           SQL.md: nullable now, fence, exact types.

update reltask.jobs
set heartbeat_at = coalesce(:now::timestamptz, statement_timestamp()),
    lock_expires_at = coalesce(:now::timestamptz, statement_timestamp())
        + claim_timeout_ms::float8 * interval '1 millisecond'
where id = :id::uuid and fence = :fence::bigint and locked_by = :worker::text
returning id;
