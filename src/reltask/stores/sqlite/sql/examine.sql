-- Purpose       Read what `reltask doctor` reports about a database, with or without reltask's
--               tables.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per statement.

select sqlite_version() as version;

pragma journal_mode;
