-- Purpose       Mark a worker as stopped, and remove it from the waiters of all leases.
-- Precondition  Not stopped yet; a second call changes nothing.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       No rows.
-- See           SQL.md: one writer.

delete from reltask_lease_waiters
where holder = :worker;

update reltask_workers
set stopped_at = :now
where id = :worker and stopped_at is null;
