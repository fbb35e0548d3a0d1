-- Purpose       in a leader's own transaction: keep anybody from taking the lease over until the commit.
-- Precondition  held, and the term still matches; otherwise nothing is found, and the transaction must be rolled back.
-- Lock order    the transaction becomes the only writer, if it is not yet: a write that changes nothing asks for that.
--               A transaction that begins with a read might be refused when it turns into a writer later.

update reltask_leases
   set term = term
 where name = :lease and term = :term and holder is not null
returning name;
