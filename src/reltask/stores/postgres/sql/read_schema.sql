-- Purpose       Read the version of the schema, the oldest version whose code may run on it, and
--               whether this server accepts writes.
-- Precondition  The tables exist; otherwise the statement fails.
-- Lock order    Locks nothing.
-- Returns       One row.

select schema_version,
       oldest_version,
       pg_is_in_recovery() as in_recovery,
       current_setting('transaction_read_only')::boolean as read_only
from reltask.meta;
