-- Purpose       let one migration run at a time.
-- Precondition  inside the migration's transaction: its end frees the lock.
-- Lock order    this lock first, tables afterwards. Gives up after a while instead of blocking the application's
--               statements behind a waiting "alter table".

set local lock_timeout = '15s';

select pg_advisory_xact_lock(hashtext('reltask.migrate'));
