-- Purpose       In a leader's own transaction: prevent a takeover of the lease until the commit.
-- Precondition  The lease is held under this term. Otherwise no row is returned, and the
--               transaction must be rolled back.
-- Lock order    The lease's row in key-share mode: heartbeats pass, takeovers do not. The locking
--               read is what checks the term: it waits for a takeover in progress, and then finds
--               another term. A check without a lock would let an old term's write commit after the
--               takeover.
-- Returns       One row with the name, if the term still holds.
-- See           SQL.md: leader check.

select lease.name
from reltask.leases as lease
where lease.name = :lease::text and lease.term = :term::bigint and lease.holder is not null
for key share;
