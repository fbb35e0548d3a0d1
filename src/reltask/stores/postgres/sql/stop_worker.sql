-- Purpose       mark a worker as stopped; it waits for no lease any more.
-- Precondition  none; a second time changes nothing.
-- Lock order    rows of this worker alone.

with
waits_no_more as (
    delete from reltask.lease_waiters where holder = :worker::text
)

update reltask.workers
set stopped_at = coalesce(:now::timestamptz, statement_timestamp())
where id = :worker::text and stopped_at is null;
