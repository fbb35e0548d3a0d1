-- Purpose       Read which jobs have these (task, key) names, to report a key that is taken.
-- Precondition  None. Reads only what the role reltask_enqueue may read.
-- Lock order    Locks nothing.
-- Returns       One row per name that is taken: task, key, and the job's id.
-- See           SQL.md: primary-key lookup.

select job.task, job.key, job.id
from unnest(:tasks::text[], :keys::text[]) as given (task, key)
cross join lateral (
    select named.task, named.key, named.id
    from reltask.jobs as named
    where named.task = given.task and coalesce(named.key, '') = given.key and named.key is not null
    limit 1
) as job;
