-- Remove reltask from this file, with all jobs, their steps and signals, the ledger, workers,
-- leases, pauses and metrics. Other tables are not touched. Stop the workers first.

drop table if exists reltask_limit_keys;
drop table if exists reltask_limits;
drop table if exists reltask_keys;
drop table if exists reltask_actions;
drop table if exists reltask_pauses;
drop table if exists reltask_marks;
drop table if exists reltask_child_ends;
drop table if exists reltask_signals;
drop table if exists reltask_steps;
drop table if exists reltask_metrics;
drop table if exists reltask_lease_waiters;
drop table if exists reltask_leases;
drop table if exists reltask_runs;
drop table if exists reltask_jobs;
drop table if exists reltask_workers;
drop table if exists reltask_meta;
