-- Purpose       Read how jobs have ended, for those who wait for their results.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per job that is gone, dead or recurring: job_id, recurring, dead, and the
--               outcome, result and error of its last run in the ledger; nulls if there is none.
--               None for a job that has yet to end.
-- See           SQL.md: JSON batch.

select given.value as job_id, jobs.schedule is not null as recurring,
       jobs.dead_at is not null as dead, runs.outcome, runs.result, runs.error
from json_each(:ids) as given
left join reltask_jobs as jobs on jobs.id = given.value
left join reltask_runs as runs
    on runs.job_id = given.value
    and runs.fence = (
        select max(every.fence)
        from reltask_runs as every
        where every.job_id = given.value
    )
where jobs.id is null or jobs.dead_at is not null or jobs.schedule is not null;
