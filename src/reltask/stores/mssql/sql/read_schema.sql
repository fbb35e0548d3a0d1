-- Purpose       the version of the tables, whether this database takes writes, and its compatibility level.
-- Precondition  none; reads only. Fails where the tables do not exist. An unknown level is null; so is that of Babelfish,
--               which says 120 of every database.
-- Lock order    no locks.

SELECT SchemaVersion AS schema_version,
       CASE WHEN CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(16)) = N'READ_ONLY' THEN 1 ELSE 0 END
           AS read_only,
       CASE WHEN SERVERPROPERTY('Babelfish') IS NULL
            THEN (SELECT CAST(compatibility_level AS int) FROM sys.databases WHERE name = DB_NAME())
       END AS compatibility_level
FROM reltask.Meta;
