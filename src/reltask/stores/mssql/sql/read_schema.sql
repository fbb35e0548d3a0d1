-- Purpose       Read the schema's version, the oldest version whose code may run on it, whether
--               the database accepts writes, and its compatibility level.
-- Precondition  The tables exist; otherwise the statement fails.
-- Lock order    Locks nothing.
-- Returns       One row.
--
-- The compatibility level is null if it is unknown.

SELECT SchemaVersion AS schema_version,
       OldestVersion AS oldest_version,
       CASE WHEN CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(16)) = N'READ_ONLY'
            THEN 1 ELSE 0 END AS read_only,
       (
           SELECT CAST(compatibility_level AS int)
           FROM sys.databases
           WHERE name = DB_NAME()
       ) AS compatibility_level
FROM reltask.Meta;
