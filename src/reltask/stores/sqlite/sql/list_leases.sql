-- Purpose       List leases by name.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per lease, with the number of its waiters and the database's time.

select name, holder, term, acquired_at, heartbeat_at, ttl_ms, expires_at,
       holder is not null and expires_at > :now as held,
       (
           select count(*)
           from reltask_lease_waiters as waiters
           where waiters.name = leases.name and waiters.waiting_until > :now
       ) as waiting,
       metadata,
       :now as now
from reltask_leases as leases
order by name;
