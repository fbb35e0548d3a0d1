-- Purpose       Read how jobs have ended, for those who wait for their results.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per job that is gone, dead or recurring: job_id, recurring, dead, and the
--               outcome, result and error of its last run in the ledger; nulls if there is none.
--               None for a job that has yet to end.
-- See           SQL.md: primary-key lookup.

select given.id, job.schedule is not null, job.dead_at is not null, last_run.outcome,
       last_run.result, last_run.error
from unnest(:ids::uuid[]) as given (id)
left join reltask.jobs as job on job.id = any (array[given.id])
left join lateral (
    select run.outcome, run.result, run.error
    from reltask.runs as run
    where run.job_id = given.id
    order by run.fence desc
    limit 1
) as last_run on true
where job.id is null or job.dead_at is not null or job.schedule is not null;
