-- Purpose       List dead jobs, the latest first, each with the end of its last error.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per dead job. error is null if its last run has been pruned.
-- Parameters    :most is how many are read; :characters how much of each error.

select job.id, job.task, job.key, job.queue, job.fence, job.attempt, job.dead_at,
       run.outcome, substr(run.error, -:characters) as error
from (
    select id, task, key, queue, fence, attempt, dead_at
    from reltask_jobs
    where dead_at is not null
    order by dead_at desc
    limit :most
) as job
left join reltask_runs as run on run.job_id = job.id and run.fence = job.fence
order by job.dead_at desc, job.id desc;
