-- Remove reltask and everything it knows: jobs, the ledger, workers. Nothing else in the file is touched.
-- Stop the workers first.

drop table if exists reltask_runs;
drop table if exists reltask_jobs;
drop table if exists reltask_workers;
drop table if exists reltask_meta;
