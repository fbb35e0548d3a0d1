-- Purpose       Wake the candidates that wait for a lease: it was given back.
-- Precondition  Sent on its own, after the commit that it reports.
-- Lock order    Locks nothing.
-- Returns       One empty row.

select pg_notify('reltask_leases', :lease::text);
