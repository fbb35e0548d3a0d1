-- Purpose       Find gaps and contradictions in the histories of jobs.
-- Precondition  None. Reads every ledger row of a slice once, by primary key, in one snapshot.
-- Lock order    Locks nothing.
-- Returns       One row per finding; none if the histories are sound.
-- Parameters    :task is null for all tasks; :kept_for is an interval, younger history is never
--               pruned; :limit. The slice has the jobs whose ids are greater than :after, up to and
--               including :upto (see audit_slice.sql): for all, write the ids of 0s and of fs.
-- See           SQL.md: nullable now, exact types.
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
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) - :kept_for::interval as kept_since
),

-- Consecutive ledger rows of a job.
steps as (
    select job_id, task, key, fence, slot_no,
           pg_catalog.lag(fence) over by_fence + 1 as fence_due,
           pg_catalog.lag(
               case when outcome in ('succeeded', 'cancelled', 'skipped', 'discarded')
                    then slot_no + 1 else slot_no end
           ) over by_fence as slot_due
    from reltask.runs
    where job_id > :after::uuid and job_id <= :upto::uuid
    window by_fence as (partition by job_id order by fence)
),

-- The newest ledger row of each job.
newest as (
    select distinct on (job_id) job_id, task, key, fence, slot_no, ends_job,
           case when outcome in ('succeeded', 'cancelled', 'skipped', 'discarded')
                then slot_no + 1 else slot_no end as slot_after
    from reltask.runs
    where job_id > :after::uuid and job_id <= :upto::uuid
    order by job_id, fence desc
),

-- What was due, and what is there instead; null where there is nothing to compare.
links (job_id, task, key, fence_due, slot_due, fence, slot_no) as (
    select job_id, task, key, fence_due, slot_due, fence, slot_no
    from steps
    union all
    -- The job's row. Without one, the current slot is lost, unless the job has ended.
    select newest.job_id, newest.task, newest.key, newest.fence + 1, newest.slot_after,
           job.fence + case when job.locked_by is null then 1 else 0 end,
           case when job.id is not null then job.slot_no
                when not newest.ends_job then newest.slot_after + 1 end
    from newest
    left join reltask.jobs as job on job.id = newest.job_id
    union all
    -- The first run of jobs too young to have been pruned.
    select job.id, job.task, job.key, 1, 1,
           coalesce(oldest.fence, job.fence + case when job.locked_by is null then 1 else 0 end),
           coalesce(oldest.slot_no, job.slot_no)
    from parameters
    join reltask.jobs as job
        on job.id > :after::uuid and job.id <= :upto::uuid
        and job.created_at > parameters.kept_since
    left join lateral (
        select fence, slot_no
        from reltask.runs
        where job_id = job.id
        order by fence
        limit 1
    ) as oldest on true
    union all
    -- A slot that ended too recently to have been pruned, without any ledger row.
    select job.id, job.task, job.key, null, job.slot_no - 1, null, job.slot_no
    from parameters
    join reltask.jobs as job
        on job.id > :after::uuid and job.id <= :upto::uuid
        and job.created_at <= parameters.kept_since and job.last_run_time > parameters.kept_since
    where not exists (select from reltask.runs where job_id = job.id)
),

broken as materialized (
    select *
    from links
    where fence <> fence_due or slot_no <> slot_due
),

twice as materialized (
    select job_id, slot_no, min(task) as task, min(key) as key
    from reltask.runs
    where job_id > :after::uuid and job_id <= :upto::uuid
      and outcome in ('succeeded', 'cancelled', 'skipped', 'discarded')
    group by job_id, slot_no
    having count(*) > 1
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
      and not exists (
          select
          from twice
          where twice.job_id = broken.job_id and twice.slot_no = broken.slot_no
      )
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
           from reltask.runs
           where job_id = findings.job_id
           order by fence
           limit 1
       ) as starts_at
from findings
where :task::text is null or task = :task::text
order by task, job_id, first_no, kind
limit :limit::integer;
