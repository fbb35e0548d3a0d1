-- Purpose       wake the workers that listen: something may have become due, or will be at the time in the payload
--               (microseconds since 1970; empty: now).
-- Precondition  sent on its own, after the commit it speaks of: inside a busy transaction it would serialise commits.
-- Lock order    none.

select pg_notify('reltask', :payload::text);
