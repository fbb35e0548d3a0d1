-- Purpose       List dead jobs, the latest first, each with the end of its last error.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per dead job. error is null if its last run has been pruned.
-- Parameters    :most is how many are read; :characters how much of each error.
-- See           SQL.md: primary-key lookup.

select job.id, job.task, job.key, job.queue, job.fence, job.attempt, job.dead_at,
       run.outcome, run.error
from (
    select id, task, key, queue, fence, attempt, dead_at
    from reltask.jobs
    where dead_at is not null
    order by dead_at desc
    limit :most::integer
) as job
left join lateral (
    select last.outcome, right(last.error, :characters::integer) as error
    from reltask.runs as last
    where last.job_id = job.id and last.fence = job.fence
    limit 1
) as run on true
order by job.dead_at desc, job.id desc;
