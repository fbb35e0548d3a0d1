-- Purpose       Count slots and runs by task, and measure how late slots were first claimed.
-- Precondition  None. Reads every ledger row and every job.
-- Lock order    Locks nothing.
-- Returns       One row per task.
-- Parameters    :task is null for all tasks.
--
-- ended counts each slot once; doubled counts the ends beyond the first. cut counts the jobs whose
-- history does not start with their first run, because the older part was pruned.

with
by_job as (
    select job_id,
           min(task) as task,
           min(fence) as first_fence,
           pg_catalog.count(distinct slot_no) filter (where ends) as ended,
           count(*) filter (where ends) as ends,
           count(*) filter (where outcome = 'succeeded') as succeeded,
           count(*) filter (where outcome = 'cancelled') as cancelled,
           count(*) filter (where outcome = 'skipped') as skipped,
           count(*) filter (where outcome = 'discarded') as discarded,
           count(*) filter (where outcome = 'failed') as failed,
           count(*) filter (where outcome = 'lost') as lost,
           count(*) filter (
               where outcome in ('snoozed', 'suspended', 'released', 'abandoned')
           ) as given_back
    from reltask.runs
    cross join lateral (
        select outcome in ('succeeded', 'cancelled', 'skipped', 'discarded') as ends
    ) as slot
    where :task::text is null or task = :task::text
    group by job_id
    union all
    select job.id, job.task, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0
    from reltask.jobs as job
    where (:task::text is null or job.task = :task::text)
      and not exists (select from reltask.runs as run where run.job_id = job.id)
),

by_task as materialized (
    select task,
           count(*) as jobs,
           sum(ended)::bigint as ended,
           sum(ends - ended)::bigint as doubled,
           sum(succeeded)::bigint as succeeded,
           sum(cancelled)::bigint as cancelled,
           sum(skipped)::bigint as skipped,
           sum(discarded)::bigint as discarded,
           sum(failed)::bigint as failed,
           sum(lost)::bigint as lost,
           sum(given_back)::bigint as given_back,
           count(*) filter (where first_fence > 1) as cut
    from by_job
    group by task
),

-- First attempts only: a retry waits on purpose.
lateness as materialized (
    select task,
           pg_catalog.percentile_disc(array[0.5, 0.95, 1.0]::double precision[])
               within group (order by extract(epoch from claimed_at - due_at)::double precision)
               as seconds
    from reltask.runs
    where attempt = 1 and claimed_at is not null and due_at > '-infinity'
      and (:task::text is null or task = :task::text)
    group by task
)

select by_task.task, jobs, ended, doubled, succeeded, cancelled, skipped, discarded, failed, lost,
       given_back, cut, lateness.seconds[1] as late_p50, lateness.seconds[2] as late_p95,
       lateness.seconds[3] as late_max
from by_task
left join lateness on lateness.task = by_task.task
order by by_task.task;
