-- Purpose       Read the version of the schema, and the oldest version whose code may run on it.
-- Precondition  The tables exist; otherwise the statement fails.
-- Lock order    Locks nothing.
-- Returns       One row.

select schema_version, oldest_version
from reltask_meta;
