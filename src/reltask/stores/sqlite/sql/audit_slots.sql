-- Purpose       Find gaps and contradictions in the histories of jobs.
-- Precondition  None. Reads every ledger row of a slice once, by primary key, in one snapshot.
-- Lock order    Locks nothing.
-- Returns       One row per finding; none if the histories are sound.
-- Parameters    :task is null for all tasks; :kept_for is in microseconds, younger history is never
--               pruned; :limit; :now is in microseconds since 1970. The slice has the jobs whose
--               ids are greater than :after, up to and including :upto (see audit_slice.sql): for
--               all, write the ids of 0s and of fs.
-- See           SQL.md: bare columns.
--
-- Ordered by fence, each ledger row of a job follows from the one before: its fence is one higher,
-- and its slot is the same if the earlier run left it open, or the next one if the earlier run
-- ended it. The same holds between the newest ledger row and the job's row. A job without a row has
-- ended: its newest ledger row says so.
--
--     ledger    fence 1  slot 1  failed
--               fence 2  slot 1  succeeded     ends slot 1
--               fence 4  slot 3  succeeded     run-missing 3 to 3, slot-lost 2 to 2
--     row       fence 4  slot 4                the next fence would be 5: sound
--
-- Old history may have been pruned, so it may start anywhere. The history of a job younger than
-- :kept_for starts with 1.

with
-- Consecutive ledger rows of a job.
steps as (
    select job_id, task, key, fence, slot_no,
           lag(fence) over by_fence + 1 as fence_due,
           lag(slot_no + (outcome in ('succeeded', 'cancelled', 'skipped', 'discarded')))
               over by_fence as slot_due
    from reltask_runs
    where job_id > :after and job_id <= :upto
    window by_fence as (partition by job_id order by fence)
),

-- The newest ledger row of each job.
newest as (
    select job_id, task, key, max(fence) as fence, slot_no, ends_job,
           slot_no + (outcome in ('succeeded', 'cancelled', 'skipped', 'discarded')) as slot_after
    from reltask_runs
    where job_id > :after and job_id <= :upto
    group by job_id
),

-- What was due, and what is there instead; null where there is nothing to compare.
links (job_id, task, key, fence_due, slot_due, fence, slot_no) as (
    select job_id, task, key, fence_due, slot_due, fence, slot_no
    from steps
    where fence <> fence_due or slot_no <> slot_due
    union all
    -- The job's row. Without one, the current slot is lost, unless the job has ended.
    select newest.job_id, newest.task, newest.key, newest.fence + 1, newest.slot_after,
           jobs.fence + (jobs.locked_by is null),
           case when jobs.id is not null then jobs.slot_no
                when not newest.ends_job then newest.slot_after + 1 end
    from newest
    left join reltask_jobs as jobs on jobs.id = newest.job_id
    union all
    -- The first run of jobs too young to have been pruned.
    select jobs.id, jobs.task, jobs.key, 1, 1,
           coalesce(oldest.fence, jobs.fence + (jobs.locked_by is null)),
           coalesce(oldest.slot_no, jobs.slot_no)
    from reltask_jobs as jobs
    left join reltask_runs as oldest
        on oldest.job_id = jobs.id
        and oldest.fence = (select min(fence) from reltask_runs where job_id = jobs.id)
    where jobs.id > :after and jobs.id <= :upto
      and jobs.created_at > :now - :kept_for
    union all
    -- A slot that ended too recently to have been pruned, without any ledger row.
    select id, task, key, null, slot_no - 1, null, slot_no
    from reltask_jobs
    where id > :after and id <= :upto
      and created_at <= :now - :kept_for
      and last_run_time > :now - :kept_for
      and not exists (select 1 from reltask_runs where job_id = reltask_jobs.id)
),

broken as materialized (
    select *
    from links
    where fence <> fence_due or slot_no <> slot_due
),

-- Read from the index that forbids it, where that still exists.
ended_twice as materialized (
    select job_id, slot_no
    from reltask_runs
    where job_id > :after and job_id <= :upto
      and outcome in ('succeeded', 'cancelled', 'skipped', 'discarded')
    group by job_id, slot_no
    having count(*) > 1
),

twice as materialized (
    select ended_twice.job_id, ended_twice.slot_no, min(runs.task) as task, min(runs.key) as key
    from ended_twice
    join reltask_runs as runs on runs.job_id = ended_twice.job_id
    group by ended_twice.job_id, ended_twice.slot_no
),

findings as (
    select 'slot-twice' as kind, job_id, task, key, slot_no as first_no, slot_no as last_no
    from twice
    union all
    select 'slot-lost', job_id, task, key, slot_due, slot_no - 1
    from broken
    where slot_no > slot_due
    union all
    select 'slot-reopened', job_id, task, key, slot_no, slot_no
    from broken
    where slot_no < slot_due
      and (job_id, slot_no) not in (select job_id, slot_no from twice)
    union all
    select 'run-missing', job_id, task, key, fence_due, fence - 1
    from broken
    where fence > fence_due
    union all
    select 'fence-behind', job_id, task, key, fence, fence
    from broken
    where fence < fence_due
)

select kind, job_id, task, key, first_no, last_no,
       (
           select slot_no
           from reltask_runs
           where job_id = findings.job_id
           order by fence
           limit 1
       ) as starts_at
from findings
where :task is null or task = :task
order by task, job_id, first_no, kind
limit :limit;
