-- Purpose       in a leader's own transaction: keep anybody from taking the lease over until the commit.
-- Precondition  held, and the term still matches; otherwise nothing is found, and the transaction must be rolled back.
-- Lock order    one row, shared. Beats pass it, takeovers do not. It is the lock that looks at the term: a takeover
--               under way is waited for, and then the term is another one. A look without a lock would let an old
--               term's write commit after the takeover.

select lease.name
from reltask.leases as lease
where lease.name = :lease::text and lease.term = :term::bigint and lease.holder is not null
for key share;
