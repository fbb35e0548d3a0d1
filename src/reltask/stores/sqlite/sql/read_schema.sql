-- Purpose       Read the version of the schema.
-- Precondition  The tables exist; otherwise the statement fails.
-- Lock order    Locks nothing.
-- Returns       One row.

select schema_version
from reltask_meta;
