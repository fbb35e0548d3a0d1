-- Purpose       Let one migration run at a time.
-- Precondition  Inside the migration's transaction, whose end releases the lock.
-- Lock order    This lock first, tables afterwards. Gives up after 15 seconds, so that the
--               application's statements do not queue behind a waiting ALTER TABLE.
-- Returns       One empty row.

set local lock_timeout = '15s';

select pg_advisory_xact_lock(hashtextextended('reltask.migrate', 0::bigint));
