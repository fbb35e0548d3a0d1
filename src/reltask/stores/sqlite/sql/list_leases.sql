-- Purpose       leases by name, for people.
-- Precondition  none.
-- Lock order    none: reads the last committed state.

select name, holder, term, acquired_at, heartbeat_at, ttl_ms, expires_at,
       holder is not null and expires_at > :now as held,
       (select count(*)
          from reltask_lease_waiters as waiters
         where waiters.name = leases.name and waiters.waiting_until > :now) as waiting,
       metadata,
       :now as now
  from reltask_leases as leases
 order by name;
