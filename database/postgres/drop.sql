-- Remove reltask from this database, with all jobs, their steps and signals, the ledger, workers,
-- leases, pauses and metrics. Stop the workers first. The roles of permissions.sql stay: they
-- belong to the whole server, and other databases may use them.

drop schema if exists reltask cascade;
