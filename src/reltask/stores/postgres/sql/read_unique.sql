-- Purpose       Read which jobs have, or had last, these keys of unique tasks.
-- Precondition  None. Reads only what the role reltask_enqueue may read.
-- Lock order    Locks nothing.
-- Returns       One row per key that was ever taken: task, key, and the job's id.
-- See           SQL.md: primary-key lookup.

select held.task, held.key, held.job_id
from unnest(:tasks::text[], :keys::text[]) as given (task, key)
cross join lateral (
    select one.task, one.key, one.job_id
    from reltask.keys as one
    where one.task = given.task and one.key = given.key
    limit 1
) as held;
