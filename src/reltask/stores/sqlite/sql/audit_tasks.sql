-- Purpose       Count slots and runs by task, and measure how late slots were first claimed.
-- Precondition  None. Reads every ledger row and every job.
-- Lock order    Locks nothing.
-- Returns       One row per task.
-- Parameters    :task is null for all tasks.
--
-- ended counts each slot once; doubled counts the ends beyond the first. cut counts the jobs whose
-- history does not start with their first run, because the older part was pruned.

with
marked as (
    select job_id, task, fence, slot_no, outcome,
           outcome in ('succeeded', 'cancelled', 'skipped', 'discarded') as ends
    from reltask_runs
    where :task is null or task = :task
),

by_job as (
    select job_id,
           min(task) as task,
           min(fence) as first_fence,
           count(distinct case when ends then slot_no end) as ended,
           sum(ends) as ends,
           sum(outcome = 'succeeded') as succeeded,
           sum(outcome = 'cancelled') as cancelled,
           sum(outcome = 'skipped') as skipped,
           sum(outcome = 'discarded') as discarded,
           sum(outcome = 'failed') as failed,
           sum(outcome = 'lost') as lost,
           sum(outcome in ('snoozed', 'suspended', 'released', 'abandoned')) as given_back
    from marked
    group by job_id
    union all
    select id, task, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0
    from reltask_jobs
    where (:task is null or task = :task)
      and not exists (select 1 from reltask_runs where job_id = reltask_jobs.id)
),

by_task as materialized (
    select task,
           count(*) as jobs,
           sum(ended) as ended,
           sum(ends - ended) as doubled,
           sum(succeeded) as succeeded,
           sum(cancelled) as cancelled,
           sum(skipped) as skipped,
           sum(discarded) as discarded,
           sum(failed) as failed,
           sum(lost) as lost,
           sum(given_back) as given_back,
           sum(first_fence > 1) as cut
    from by_job
    group by task
),

-- First attempts only: a retry waits on purpose.
first_attempts as (
    select task,
           (claimed_at - due_at) / 1e6 as late,
           row_number() over (partition by task order by claimed_at - due_at) as nth,
           count(*) over (partition by task) as of_all
    from reltask_runs
    where attempt = 1 and claimed_at is not null
      and (:task is null or task = :task)
),

lateness as materialized (
    select task,
           min(late) filter (where nth = (of_all + 1) / 2) as late_p50,
           min(late) filter (where nth = (95 * of_all + 99) / 100) as late_p95,
           max(late) as late_max
    from first_attempts
    group by task
)

select by_task.task, jobs, ended, doubled, succeeded, cancelled, skipped, discarded, failed, lost,
       given_back, cut, late_p50, late_p95, late_max
from by_task
left join lateness on lateness.task = by_task.task
order by by_task.task;
