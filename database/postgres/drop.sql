-- Remove reltask from this database, with all jobs, their steps and signals, the ledger, workers,
-- leases, pauses and metrics. Stop the workers first. The roles of permissions.sql stay: they
-- belong to the whole server, and other databases may use them. The schema stays if it has
-- something that is not reltask's.

drop table if exists reltask.keys;
drop table if exists reltask.actions;
drop table if exists reltask.pauses;
drop table if exists reltask.limit_keys;
drop table if exists reltask.limits;
drop table if exists reltask.marks;
drop table if exists reltask.child_ends;
drop table if exists reltask.signals;
drop table if exists reltask.steps;
drop table if exists reltask.metrics;
drop table if exists reltask.lease_waiters;
drop table if exists reltask.leases;
drop table if exists reltask.workers;
drop table if exists reltask.runs;
drop table if exists reltask.runs_before;
drop table if exists reltask.jobs;
drop table if exists reltask.meta;
drop function if exists reltask.renew_partitions;
drop function if exists reltask.drop_partitions;
drop function if exists reltask.add_partitions;
drop function if exists reltask.partition_ledger;
drop function if exists reltask.first_id_at;
drop function if exists reltask.refuse_ended_jobs;
drop function if exists reltask.mark_taken_places;
drop function if exists reltask.mark_freed_places;
drop function if exists reltask.mark_waiting_job;
drop function if exists reltask.limits_fit;

do $$
begin
    drop schema if exists reltask;
exception when dependent_objects_still_exist then
    raise notice 'The schema reltask stays: it has tables or functions of yours.';
end
$$;
