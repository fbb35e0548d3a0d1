-- Purpose       Mark a worker as stopped, and remove it from the waiters of all leases.
-- Precondition  Not stopped yet; a second call changes nothing.
-- Lock order    Rows of this worker only.
-- Returns       No rows.
-- See           SQL.md: nullable now.

with
waits_no_more as (
    delete from reltask.lease_waiters where holder = :worker::text
)

update reltask.workers
set stopped_at = coalesce(:now::timestamptz, statement_timestamp())
where id = :worker::text and stopped_at is null;
