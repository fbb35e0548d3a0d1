-- Purpose       wake the workers that listen: something may have become due.
-- Precondition  sent on its own, after the commit it speaks of: inside a busy transaction it would serialise commits.
-- Lock order    none.

select pg_notify('reltask', '');
