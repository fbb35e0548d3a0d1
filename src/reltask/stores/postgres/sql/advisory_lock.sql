-- Purpose       a lock that lives as long as its connection: try for it, and ask later whether it is still there.
-- Precondition  a connection of its own, without a pool that shares sessions in between.
-- Lock order    one advisory lock; never waits.

select pg_try_advisory_lock(hashtextextended('reltask ' || :name::text, 0)) as locked;

select exists (
    select from pg_locks
    where locktype = 'advisory' and granted and pid = pg_backend_pid()
      and objsubid = 1 and (classid::bigint << 32 | objid::bigint) = hashtextextended('reltask ' || :name::text, 0)
) as locked;
