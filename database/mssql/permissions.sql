-- Four roles of this database, from the most to the least trusted. Run it after `reltask migrate`, as a user who may create
-- roles (db_owner); run it again after each later migration. Running it again changes nothing.
--
-- The first run makes reltask_migrate the owner of the schema. With a change of owner SQL Server drops every grant on the
-- tables in it. Those that stand below are given again in the same transaction, so nobody misses them; grants of your own
-- on these tables have to be given again by hand. Where the owner is right already, no grant is dropped.
--
--     reltask_migrate   owns the schema and may change it; for the one who deploys
--     reltask_run       workers: claims, settles, leads, reads; cannot rewrite the ledger, nor change the tables
--     reltask_enqueue   web applications: adds jobs; cannot read arguments, change, claim or remove anything
--     reltask_read      dashboards and people: sees everything, changes nothing
--
-- Nobody logs in as one of these. Make a user of a managed identity, an application, a group or a person of Microsoft
-- Entra ID, by its display name and without any password, and give it a role:
--
--     CREATE USER [my-worker] FROM EXTERNAL PROVIDER;
--     ALTER ROLE reltask_run ADD MEMBER [my-worker];

SET NOCOUNT ON;
SET XACT_ABORT ON;

IF DATABASE_PRINCIPAL_ID(N'reltask_migrate') IS NULL CREATE ROLE reltask_migrate;
IF DATABASE_PRINCIPAL_ID(N'reltask_run') IS NULL CREATE ROLE reltask_run;
IF DATABASE_PRINCIPAL_ID(N'reltask_enqueue') IS NULL CREATE ROLE reltask_enqueue;
IF DATABASE_PRINCIPAL_ID(N'reltask_read') IS NULL CREATE ROLE reltask_read;

-- Workers may be running: they see all of the old grants, or all of the new ones.
BEGIN TRANSACTION;

-- The owner comes first: a change of owner takes grants away. Babelfish knows neither statement.
IF SERVERPROPERTY('Babelfish') IS NULL
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM sys.schemas
        WHERE schema_id = SCHEMA_ID(N'reltask') AND principal_id = DATABASE_PRINCIPAL_ID(N'reltask_migrate')
    )
        EXEC (N'ALTER AUTHORIZATION ON SCHEMA::reltask TO reltask_migrate');
    EXEC (N'GRANT CREATE TABLE TO reltask_migrate');
END;

GRANT SELECT ON reltask.Meta TO reltask_run;
GRANT SELECT ON reltask.Meta TO reltask_enqueue;
GRANT SELECT ON reltask.Meta TO reltask_read;

-- Workers. Of the ledger they can add rows and prune them, but not rewrite one; that none younger than an hour is pruned
-- is kept by the statement alone. The row of a lease is never removed, because its term must go on.
GRANT SELECT, INSERT, UPDATE, DELETE ON reltask.Jobs TO reltask_run;
GRANT SELECT, INSERT, DELETE ON reltask.Runs TO reltask_run;
GRANT SELECT, INSERT, UPDATE, DELETE ON reltask.Workers TO reltask_run;
GRANT SELECT, INSERT, UPDATE ON reltask.Leases TO reltask_run;
GRANT SELECT, INSERT, UPDATE, DELETE ON reltask.LeaseWaiters TO reltask_run;
GRANT SELECT, INSERT, UPDATE, DELETE ON reltask.Metrics TO reltask_run;

-- Enqueue only. Of what is there it sees ids and names, so that a repeated insert is recognised. SQL Server cannot grant
-- INSERT by column: this role could add a job of its own that looks claimed. It cannot touch any other.
GRANT INSERT ON reltask.Jobs TO reltask_enqueue;
GRANT SELECT ON reltask.Jobs (Id, JobName, JobKey, Recurring) TO reltask_enqueue;
GRANT SELECT ON reltask.Runs (JobId) TO reltask_enqueue;

-- Read only.
GRANT SELECT ON reltask.Jobs TO reltask_read;
GRANT SELECT ON reltask.Runs TO reltask_read;
GRANT SELECT ON reltask.Workers TO reltask_read;
GRANT SELECT ON reltask.Leases TO reltask_read;
GRANT SELECT ON reltask.LeaseWaiters TO reltask_read;
GRANT SELECT ON reltask.Metrics TO reltask_read;

COMMIT TRANSACTION;
