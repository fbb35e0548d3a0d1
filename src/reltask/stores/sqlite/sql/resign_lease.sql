-- Purpose       give a lease back; the row stays, so that the next term is a higher one.
-- Precondition  term and acquisition still match.
-- Lock order    the whole file: one short write transaction.

update reltask_leases
   set holder = null, acquisition = null, expires_at = min(expires_at, :now)
 where name = :lease and term = :term and acquisition = :acquisition
returning name;
