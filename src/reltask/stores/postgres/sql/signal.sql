-- Purpose       Wake the workers that listen: a job may be due, now or at the time in the payload.
-- Precondition  Sent on its own, after the commit that it reports: inside a busy transaction it
--               would serialise commits.
-- Lock order    Locks nothing.
-- Returns       One empty row.
-- Parameters    :payload is a time in microseconds since 1970, or empty for now.

select pg_notify('reltask', :payload::text);
