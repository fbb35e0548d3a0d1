-- Purpose       Try to take a lock that lasts as long as its connection; ask if it is held.
-- Precondition  A connection of its own, without a pooler that shares sessions.
-- Lock order    One advisory lock; never waits.
-- Returns       One row per statement: locked.

select pg_try_advisory_lock(hashtextextended('reltask ' || :name::text, 0::bigint)) as locked;

select exists (
    select from pg_locks
    where locktype = 'advisory' and granted and pid = pg_backend_pid()
      and objsubid = 1
      and (classid::bigint << 32 | objid::bigint)
          = hashtextextended('reltask ' || :name::text, 0::bigint)
) as locked;
