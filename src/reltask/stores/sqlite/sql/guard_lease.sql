-- Purpose       In a leader's own transaction: prevent a takeover of the lease until the commit.
-- Precondition  The lease is held under this term. Otherwise no row is returned, and the
--               transaction must be rolled back.
-- Lock order    SQLite's write lock: an update that changes nothing makes the transaction the
--               writer. One that begins with a read could be refused when it writes later.
-- Returns       One row with the name, if the term still holds.
-- See           SQL.md: leader check, one writer.

update reltask_leases
set term = term
where name = :lease and term = :term and holder is not null
returning name;
