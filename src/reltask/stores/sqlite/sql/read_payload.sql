-- Purpose       Read what a job was given: of its row, or of the ledger row that ended it.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row if there is such a job. args is null if the ledger does not keep it.

select given.args, given.headers, given.task, given.queue, given.priority
from (
    select job.args, job.headers, job.task, job.queue, job.priority, 1 as nth, 0 as fence
    from reltask_jobs as job
    where job.id = :job_id
    union all
    select run.args, run.headers, run.task, run.queue, run.priority, 2, run.fence
    from reltask_runs as run
    where run.job_id = :job_id and run.ends_job
) as given
order by given.nth, given.fence desc
limit 1;
