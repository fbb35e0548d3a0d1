-- Purpose       mark a worker as stopped.
-- Precondition  none; a second time changes nothing.
-- Lock order    one row.

update reltask.workers
set stopped_at = coalesce(:now::timestamptz, statement_timestamp())
where id = :worker::text and stopped_at is null;
