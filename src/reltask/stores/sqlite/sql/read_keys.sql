-- Purpose       which jobs have these (task, key) names: told to whoever wanted to enqueue another one of that name.
-- Precondition  none.
-- Lock order    none: reads the last committed state.

with names as (
    select json_extract(value, '$[0]') as task, json_extract(value, '$[1]') as key from json_each(:names)
)
select jobs.task, jobs.key, jobs.id
  from names
  join reltask_jobs as jobs
    on jobs.task = names.task
   and coalesce(jobs.key, '') = names.key
 where jobs.key is not null;
