-- Purpose       Read the definitions of the jobs with these (task, key) names, and the database's
--               time.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per job that exists.
-- See           SQL.md: nullable now.

select job.id, job.task, job.key, job.schedule, job.declaration, job.app_version, job.next_run_time,
       coalesce(:now::timestamptz, statement_timestamp()) as now
from unnest(:tasks::text[], :keys::text[]) as given (task, key)
join reltask.jobs as job
    on job.task = given.task and coalesce(job.key, '') = coalesce(given.key, '')
where job.schedule is not null or job.key is not null;
