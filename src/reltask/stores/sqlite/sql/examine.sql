-- Purpose       what a doctor wants to know about this file, whether or not it has reltask's tables.
-- Precondition  none.
-- Lock order    none: reads the last committed state.

select sqlite_version() as version;

pragma journal_mode;
