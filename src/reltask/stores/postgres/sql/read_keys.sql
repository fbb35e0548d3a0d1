-- Purpose       which jobs have these (task, key) names: told to whoever wanted to enqueue another one of that name.
-- Precondition  none; reads only, and no more than a user who may only enqueue can read.
-- Lock order    no locks.
--
-- A name is unique, so the limit changes nothing; but with it each name is looked up, and not all names are walked.

select job.task, job.key, job.id
from unnest(:tasks::text[], :keys::text[]) as given (task, key)
cross join lateral (
    select named.task, named.key, named.id
    from reltask.jobs as named
    where named.task = given.task and coalesce(named.key, '') = given.key and named.key is not null
    limit 1
) as job;
