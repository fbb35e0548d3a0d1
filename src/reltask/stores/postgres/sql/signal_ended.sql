-- Purpose       Notify those who wait for results that these jobs have ended.
-- Precondition  Sent on its own, after the commit that it reports.
-- Lock order    Locks nothing.
-- Returns       One empty row.
-- Parameters    :jobs has ids separated by spaces.

select pg_notify('reltask_ended', :jobs::text);
