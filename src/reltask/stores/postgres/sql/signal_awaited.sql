-- Purpose       Ask the workers to signal the ends of these jobs: their results are waited for.
-- Precondition  Sent on its own, by a process that listens for ends already.
-- Lock order    Locks nothing.
-- Returns       One empty row.
-- Parameters    :jobs has ids separated by spaces.

select pg_notify('reltask_awaited', :jobs::text);
