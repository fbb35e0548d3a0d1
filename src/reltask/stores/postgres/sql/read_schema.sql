-- Purpose       the version of the tables, and whether this server takes writes.
-- Precondition  none; reads only. Fails where the tables do not exist.
-- Lock order    no locks.

select schema_version,
       pg_is_in_recovery() as in_recovery,
       current_setting('transaction_read_only')::boolean as read_only
from reltask.meta;
