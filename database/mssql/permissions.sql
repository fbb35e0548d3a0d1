-- Five roles of this database. Run it after `reltask migrate`, as a user who may create roles
-- (db_owner), and again after each later migration.
--
-- The first run makes reltask_migrate the owner of the schema. A change of owner drops every grant
-- on the tables in the schema. The grants below are made again in the same transaction, so no
-- session misses them; your own grants on these tables must be made again by hand. If the owner is
-- already right, no grant is dropped.
--
--     reltask_migrate   owns the schema and may change it; for deployments
--     reltask_run       workers: claim, settle, lead, read; cannot update the ledger or change the
--                       tables
--     reltask_operate   people: read everything; schedule, replace, pause, resume, run now,
--                       retry, cancel and discard jobs; pause queues and tasks; make steps run
--                       again; send signals; release leases
--     reltask_enqueue   web applications: insert jobs, send signals; cannot read arguments or
--                       values, or update, claim or delete anything
--     reltask_read      dashboards and people: read everything, write nothing
--
-- SQL Server grants INSERT on whole rows. So here, unlike on PostgreSQL, reltask_enqueue can insert
-- a schedule, a job that looks claimed, or a job that has ended before; and reltask_run can insert
-- ledger rows with any time, and delete any; reltask_operate can change every column of a job.
-- docs/security.md compares the databases.
--
-- These roles cannot log in. Create a user for a managed identity, an application, a group or a
-- person of Microsoft Entra ID, by its display name and without a password, and give it a role:
--
--     CREATE USER [my-worker] FROM EXTERNAL PROVIDER;
--     ALTER ROLE reltask_run ADD MEMBER [my-worker];

SET NOCOUNT ON;
SET XACT_ABORT ON;

IF DATABASE_PRINCIPAL_ID(N'reltask_migrate') IS NULL CREATE ROLE reltask_migrate;
IF DATABASE_PRINCIPAL_ID(N'reltask_run') IS NULL CREATE ROLE reltask_run;
IF DATABASE_PRINCIPAL_ID(N'reltask_operate') IS NULL CREATE ROLE reltask_operate;
IF DATABASE_PRINCIPAL_ID(N'reltask_enqueue') IS NULL CREATE ROLE reltask_enqueue;
IF DATABASE_PRINCIPAL_ID(N'reltask_read') IS NULL CREATE ROLE reltask_read;

-- Workers may be running: they see either all of the old grants or all of the new ones.
BEGIN TRANSACTION;

-- The owner comes first, because a change of owner drops grants.
IF NOT EXISTS (
    SELECT 1
    FROM sys.schemas
    WHERE schema_id = SCHEMA_ID(N'reltask')
      AND principal_id = DATABASE_PRINCIPAL_ID(N'reltask_migrate')
)
    ALTER AUTHORIZATION ON SCHEMA::reltask TO reltask_migrate;
GRANT CREATE TABLE TO reltask_migrate;

GRANT SELECT ON reltask.Meta TO reltask_run;
GRANT SELECT ON reltask.Meta TO reltask_operate;
GRANT UPDATE (Draining) ON reltask.Meta TO reltask_operate;
GRANT SELECT ON reltask.Meta TO reltask_enqueue;
GRANT SELECT ON reltask.Meta TO reltask_read;

-- Workers. They can insert and prune ledger rows, but not update them; only the statement itself
-- keeps rows younger than an hour. The row of a lease is never deleted, because its term must keep
-- growing.
GRANT SELECT, INSERT, UPDATE, DELETE ON reltask.Jobs TO reltask_run;
GRANT SELECT, INSERT, DELETE ON reltask.Runs TO reltask_run;
GRANT SELECT, INSERT, UPDATE, DELETE ON reltask.Workers TO reltask_run;
GRANT SELECT, INSERT, UPDATE ON reltask.Leases TO reltask_run;
GRANT SELECT, INSERT, UPDATE, DELETE ON reltask.LeaseWaiters TO reltask_run;
GRANT SELECT, INSERT, UPDATE, DELETE ON reltask.Metrics TO reltask_run;
GRANT SELECT, INSERT, UPDATE, DELETE ON reltask.Steps TO reltask_run;
GRANT SELECT, INSERT, UPDATE, DELETE ON reltask.Signals TO reltask_run;
GRANT SELECT, INSERT, DELETE ON reltask.ChildEnds TO reltask_run;
GRANT SELECT, INSERT, DELETE ON reltask.Marks TO reltask_run;
GRANT SELECT, INSERT, DELETE ON reltask.Pauses TO reltask_run;
GRANT SELECT, INSERT, UPDATE ON reltask.Limits TO reltask_run;
GRANT SELECT, INSERT, UPDATE, DELETE ON reltask.LimitKeys TO reltask_run;
GRANT SELECT, INSERT, UPDATE, DELETE ON reltask.Keys TO reltask_run;

-- Operators. Discarding a job moves its fence, adds a ledger row and reports its end to its parent;
-- forgetting a step removes its record, the ends of its children and their marks.
GRANT SELECT, INSERT, UPDATE, DELETE ON reltask.Jobs TO reltask_operate;
GRANT SELECT, INSERT ON reltask.Runs TO reltask_operate;
GRANT SELECT ON reltask.Workers TO reltask_operate;
GRANT SELECT, UPDATE ON reltask.Leases TO reltask_operate;
GRANT SELECT ON reltask.LeaseWaiters TO reltask_operate;
GRANT SELECT ON reltask.Metrics TO reltask_operate;
GRANT SELECT, DELETE ON reltask.Steps TO reltask_operate;
GRANT SELECT, INSERT, UPDATE ON reltask.Signals TO reltask_operate;
GRANT SELECT, INSERT, DELETE ON reltask.ChildEnds TO reltask_operate;
GRANT SELECT, INSERT, DELETE ON reltask.Marks TO reltask_operate;
GRANT SELECT, INSERT, DELETE ON reltask.Pauses TO reltask_operate;
GRANT SELECT, INSERT, UPDATE ON reltask.Keys TO reltask_operate;
GRANT SELECT, INSERT ON reltask.Actions TO reltask_operate;
GRANT SELECT, INSERT, UPDATE ON reltask.Limits TO reltask_operate;
GRANT SELECT ON reltask.LimitKeys TO reltask_operate;
GRANT UPDATE ON reltask.Actions (Outcome, Changed) TO reltask_operate;

-- Enqueue only. It reads ids and names, to recognise a repeated insert, and the slot that a signal
-- is for. It cannot change other jobs.
GRANT INSERT ON reltask.Jobs TO reltask_enqueue;
GRANT INSERT ON reltask.Signals TO reltask_enqueue;
GRANT INSERT ON reltask.Marks TO reltask_enqueue;
GRANT SELECT, INSERT, UPDATE ON reltask.Keys TO reltask_enqueue;
GRANT SELECT ON reltask.Jobs (
    Id, JobName, JobKey, Recurring, SlotNo, DeadAt, SlotStartedAt
) TO reltask_enqueue;
GRANT SELECT ON reltask.Signals (JobId, SlotNo, Name, Id) TO reltask_enqueue;
GRANT SELECT ON reltask.Runs (JobId) TO reltask_enqueue;

-- Read only.
GRANT SELECT ON reltask.Jobs TO reltask_read;
GRANT SELECT ON reltask.Runs TO reltask_read;
GRANT SELECT ON reltask.Workers TO reltask_read;
GRANT SELECT ON reltask.Leases TO reltask_read;
GRANT SELECT ON reltask.LeaseWaiters TO reltask_read;
GRANT SELECT ON reltask.Metrics TO reltask_read;
GRANT SELECT ON reltask.Steps TO reltask_read;
GRANT SELECT ON reltask.Signals TO reltask_read;
GRANT SELECT ON reltask.ChildEnds TO reltask_read;
GRANT SELECT ON reltask.Marks TO reltask_read;
GRANT SELECT ON reltask.Pauses TO reltask_read;
GRANT SELECT ON reltask.Actions TO reltask_read;
GRANT SELECT ON reltask.Limits TO reltask_read;
GRANT SELECT ON reltask.LimitKeys TO reltask_read;
GRANT SELECT ON reltask.Keys TO reltask_read;

COMMIT TRANSACTION;
