-- Purpose       Find where the next slice of an audit ends.
-- Precondition  None. Reads :rows entries of each primary key.
-- Lock order    Locks nothing.
-- Returns       One row: the last job of the slice; none if the rest is one slice.
-- Parameters    The slice begins after the job :after, and ends before either table has more than
--               :rows further rows, or with the first job that has more.

select slice.ends_with
from (
    (
        select run.job_id as ends_with
        from reltask.runs as run
        where run.job_id > :after::uuid
        order by run.job_id
        limit 1 offset :rows::bigint
    )
    union all
    (
        select job.id
        from reltask.jobs as job
        where job.id > :after::uuid
        order by job.id
        limit 1 offset :rows::bigint
    )
) as slice
order by slice.ends_with
limit 1;
