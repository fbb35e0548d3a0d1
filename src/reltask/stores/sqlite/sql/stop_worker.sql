-- Purpose       mark a worker as stopped; it waits for no lease any more.
-- Precondition  not stopped yet.
-- Lock order    the whole file: one short write transaction.

delete from reltask_lease_waiters where holder = :worker;

update reltask_workers set stopped_at = :now where id = :worker and stopped_at is null;
