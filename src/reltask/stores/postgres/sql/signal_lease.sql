-- Purpose       wake those that wait for a lease: it was given back.
-- Precondition  sent on its own, after the commit it speaks of.
-- Lock order    none.

select pg_notify('reltask_leases', :lease::text);
