-- Purpose       Find where the next slice of an audit ends.
-- Precondition  None. Reads :rows entries of each primary key.
-- Lock order    Locks nothing.
-- Returns       One row: the last job of the slice; none if the rest is one slice.
-- Parameters    The slice begins after the job :after, and ends before either table has more than
--               :rows further rows, or with the first job that has more.

select ends_with
from (
    select *
    from (
        select job_id as ends_with
        from reltask_runs
        where job_id > :after
        order by job_id
        limit 1 offset :rows
    )
    union all
    select *
    from (
        select id
        from reltask_jobs
        where id > :after
        order by id
        limit 1 offset :rows
    )
)
order by ends_with
limit 1;
