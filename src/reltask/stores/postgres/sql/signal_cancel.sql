-- Purpose       Notify the workers that jobs are cancelled: those that hold them look at once.
-- Precondition  Sent on its own, after the commit that it reports.
-- Lock order    Locks nothing.
-- Returns       One empty row.
-- Parameters    :jobs has ids separated by spaces; empty: look at all.

select pg_notify('reltask_cancel', :jobs::text);
