-- Purpose       Read which jobs have these (task, key) names, to report a key that is taken.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per name that is taken: task, key, and the job's id.
-- See           SQL.md: JSON batch.

with
names as (
    select json_extract(value, '$[0]') as task, json_extract(value, '$[1]') as key
    from json_each(:names)
)

select jobs.task, jobs.key, jobs.id
from names
join reltask_jobs as jobs
    on jobs.task = names.task
    and coalesce(jobs.key, '') = names.key
where jobs.key is not null;
