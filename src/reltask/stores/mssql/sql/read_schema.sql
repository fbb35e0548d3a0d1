-- Purpose       the version of the tables, and whether this database takes writes.
-- Precondition  none; reads only. Fails where the tables do not exist.
-- Lock order    no locks.

SELECT SchemaVersion AS schema_version,
       CASE WHEN CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(16)) = N'READ_ONLY' THEN 1 ELSE 0 END
           AS read_only
FROM reltask.Meta;
