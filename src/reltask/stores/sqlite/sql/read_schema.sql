-- Purpose       the version of the schema.
-- Precondition  none; the table is missing in a file that reltask has never opened.
-- Lock order    none: reads the last committed state.

select schema_version from reltask_meta;
