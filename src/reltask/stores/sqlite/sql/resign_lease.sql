-- Purpose       Give a lease back; the row stays, so that the next term is higher.
-- Precondition  Term and acquisition still match.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row with the name, if the lease was given back.
-- See           SQL.md: one writer.

update reltask_leases
set holder = null,
    acquisition = null,
    expires_at = min(expires_at, :now)
where name = :lease and term = :term and acquisition = :acquisition
returning name;
