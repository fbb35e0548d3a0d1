-- Purpose       Read the definitions of the jobs with these (task, key) names, and the database's
--               time.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per job that exists.
-- See           SQL.md: JSON batch.

with
names as (
    select json_extract(value, '$[0]') as task, json_extract(value, '$[1]') as key
    from json_each(:names)
)

select jobs.id, jobs.task, jobs.key, jobs.schedule, jobs.declaration, jobs.app_version,
       jobs.next_run_time, :now as now
from names
join reltask_jobs as jobs
    on jobs.task = names.task
    and coalesce(jobs.key, '') = coalesce(names.key, '')
where jobs.schedule is not null or jobs.key is not null;
