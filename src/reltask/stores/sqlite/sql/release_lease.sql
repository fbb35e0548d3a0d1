-- Purpose       Take a lease away from its holder, on an operator's order.
-- Precondition  Held, under the term that the operator has seen.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row with the name, if the lease was released.
-- See           SQL.md: one writer.

update reltask_leases
set holder = null,
    acquisition = null,
    expires_at = min(expires_at, :now)
where name = :lease and term = :term and holder is not null
returning name;
