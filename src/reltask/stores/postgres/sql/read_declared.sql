-- Purpose       what the rows with these (task, key) names say about their definitions, and the database's time.
-- Precondition  none; reads only.
-- Lock order    no locks.

select job.id, job.task, job.key, job.schedule, job.declaration, job.app_version, job.next_run_time,
       coalesce(:now::timestamptz, statement_timestamp()) as now
from unnest(:tasks::text[], :keys::text[]) as given (task, key)
join reltask.jobs as job on job.task = given.task and coalesce(job.key, '') = coalesce(given.key, '')
where job.schedule is not null or job.key is not null;
