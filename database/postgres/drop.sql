-- Removes reltask from this database: jobs, ledger, workers, leases and metrics are gone for good. Stop the workers
-- first.
-- The roles of permissions.sql belong to the whole server and may be used by other databases; they are left alone.

drop schema if exists reltask cascade;
