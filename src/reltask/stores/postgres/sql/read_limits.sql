-- Purpose       Read the limits as they are set.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per limit, by name.

select name, running, rate_count, rate_period_ms, burst, declaration, app_version
from reltask.limits
order by name;
