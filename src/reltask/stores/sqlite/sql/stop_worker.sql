-- Purpose       mark a worker as stopped.
-- Precondition  not stopped yet.
-- Lock order    the whole file: one short write transaction.

update reltask_workers set stopped_at = :now where id = :worker and stopped_at is null;
