-- Removes reltask from this database: jobs, ledger, workers, leases and metrics are gone for good. Stop the workers first.
-- The roles of permissions.sql stay, with their members. To remove one:  DROP ROLE reltask_run;  once it has none.

SET NOCOUNT ON;

DROP TABLE IF EXISTS reltask.Metrics;
DROP TABLE IF EXISTS reltask.LeaseWaiters;
DROP TABLE IF EXISTS reltask.Leases;
DROP TABLE IF EXISTS reltask.Workers;
DROP TABLE IF EXISTS reltask.Runs;
DROP TABLE IF EXISTS reltask.Jobs;
DROP TABLE IF EXISTS reltask.Meta;
DROP SCHEMA IF EXISTS reltask;
