-- Purpose       take a lease away from its holder, by a person's order.
-- Precondition  held, under the term that the person saw.
-- Lock order    the whole file: one short write transaction.

update reltask_leases
   set holder = null, acquisition = null, expires_at = min(expires_at, :now)
 where name = :lease and term = :term and holder is not null
returning name;
