-- Purpose       List leases by name.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per lease, with the number of its waiters and the database's time.
-- See           SQL.md: nullable now.

select lease.name, lease.holder, lease.term, lease.acquired_at, lease.heartbeat_at, lease.ttl_ms,
       lease.expires_at,
       lease.holder is not null and lease.expires_at > parameters.now as held,
       (
           select count(*)
           from reltask.lease_waiters as waiter
           where waiter.name = lease.name and waiter.waiting_until > parameters.now
       ) as waiting,
       lease.metadata, parameters.now
from reltask.leases as lease
cross join (select coalesce(:now::timestamptz, statement_timestamp()) as now) as parameters
order by lease.name;
