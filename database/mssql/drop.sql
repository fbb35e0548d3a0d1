-- Remove reltask from this database, with all jobs, steps, signals, the ledger, workers, leases,
-- pauses and metrics. Stop the workers first. The roles of permissions.sql stay, with their
-- members. To remove one that has no members:  DROP ROLE reltask_run;

SET NOCOUNT ON;

DROP TABLE IF EXISTS reltask.Keys;
DROP TABLE IF EXISTS reltask.Actions;
DROP TABLE IF EXISTS reltask.Pauses;
DROP TABLE IF EXISTS reltask.LimitKeys;
DROP TABLE IF EXISTS reltask.Limits;
DROP TABLE IF EXISTS reltask.Marks;
DROP TABLE IF EXISTS reltask.ChildEnds;
DROP TABLE IF EXISTS reltask.Signals;
DROP TABLE IF EXISTS reltask.Steps;
DROP TABLE IF EXISTS reltask.Metrics;
DROP TABLE IF EXISTS reltask.LeaseWaiters;
DROP TABLE IF EXISTS reltask.Leases;
DROP TABLE IF EXISTS reltask.Workers;
DROP TABLE IF EXISTS reltask.Runs;
DROP TABLE IF EXISTS reltask.Jobs;
DROP TABLE IF EXISTS reltask.Meta;
DROP SCHEMA IF EXISTS reltask;
