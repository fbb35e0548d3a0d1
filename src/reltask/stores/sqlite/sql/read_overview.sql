-- Purpose       Read what the overview shows: one look every two seconds, for all viewers.
-- Precondition  None.
-- Lock order    Locks nothing: one read transaction.
-- Returns       Statement 1: lanes by queue and task. 2 to 4: claimed, paused and dead jobs by
--               queue and task. 5: recurring tasks. 6: live workers by what they serve. 7: workers
--               by state. 8: leases. 9 and 10: the runs of the last hour by minute and by task.
--               11: pauses.
-- Parameters    :most is where counting stops. With more than two lanes each is counted up to a
--               smaller number, which is returned as most.
-- See           SQL.md: nullable now, filtered index.
--
-- The recursion goes from lane to lane, one index seek each, as in claim_jobs.sql. So the cost
-- depends on the number of lanes and on :most, not on the number of jobs. Jobs with a limit have
-- another index, and lanes of their own: one per queue and task, whatever their keys.

with recursive
lane (head) as (
    select (
        select first.rowid
        from reltask_jobs as first
        where first.isolated in (0, 1)
          and first.locked_by is null and first.paused_at is null and first.dead_at is null
          and first.limit_key is null
        order by first.isolated, first.queue, first.task, first.priority, first.due_at
        limit 1
    )
    union all
    select coalesce(
        (
            select next.rowid
            from reltask_jobs as next
            where next.isolated = this.isolated and next.queue = this.queue
              and next.task = this.task and next.priority > this.priority
              and next.locked_by is null and next.paused_at is null and next.dead_at is null
              and next.limit_key is null
            order by next.priority, next.due_at
            limit 1
        ),
        (
            select next.rowid
            from reltask_jobs as next
            where next.isolated = this.isolated and next.queue = this.queue
              and next.task > this.task
              and next.locked_by is null and next.paused_at is null and next.dead_at is null
              and next.limit_key is null
            order by next.task, next.priority, next.due_at
            limit 1
        ),
        (
            select next.rowid
            from reltask_jobs as next
            where next.isolated = this.isolated and next.queue > this.queue
              and next.locked_by is null and next.paused_at is null and next.dead_at is null
              and next.limit_key is null
            order by next.queue, next.task, next.priority, next.due_at
            limit 1
        ),
        (
            select next.rowid
            from reltask_jobs as next
            where next.isolated > this.isolated
              and next.locked_by is null and next.paused_at is null and next.dead_at is null
              and next.limit_key is null
            order by next.isolated, next.queue, next.task, next.priority, next.due_at
            limit 1
        )
    )
    from lane
    join reltask_jobs as this on this.rowid = lane.head
),

lanes as materialized (
    select this.isolated, this.queue, this.task, this.priority
    from lane
    join reltask_jobs as this on this.rowid = lane.head
),

limited_lane (head) as (
    select (
        select first.rowid
        from reltask_jobs as first
        where first.queue >= ''
          and first.locked_by is null and first.paused_at is null and first.dead_at is null
          and first.limit_key is not null
        order by first.queue, first.task, first.due_at
        limit 1
    )
    union all
    select coalesce(
        (
            select next.rowid
            from reltask_jobs as next
            where next.queue = this.queue and next.task > this.task
              and next.locked_by is null and next.paused_at is null and next.dead_at is null
              and next.limit_key is not null
            order by next.task, next.due_at
            limit 1
        ),
        (
            select next.rowid
            from reltask_jobs as next
            where next.queue > this.queue
              and next.locked_by is null and next.paused_at is null and next.dead_at is null
              and next.limit_key is not null
            order by next.queue, next.task, next.due_at
            limit 1
        )
    )
    from limited_lane
    join reltask_jobs as this on this.rowid = limited_lane.head
),

limited_lanes as materialized (
    select this.queue, this.task
    from limited_lane
    join reltask_jobs as this on this.rowid = limited_lane.head
),

share as materialized (
    select min(:most, max(:most / 100, 2 * :most / max(count(*), 1))) as most
    from (
        select 1 from lanes
        union all
        select 1 from limited_lanes
    )
),

counted as materialized (
    select lane.queue, lane.task, share.most,
           (
               select count(*)
               from (
                   select 1
                   from reltask_jobs as job
                   where job.isolated = lane.isolated and job.queue = lane.queue
                     and job.task = lane.task and job.priority = lane.priority
                     and job.due_at <= :now
                     and job.locked_by is null and job.paused_at is null and job.dead_at is null
                     and job.limit_key is null
                   limit (select most from share)
               )
           ) as due,
           (
               select min(job.due_at)
               from reltask_jobs as job
               where job.isolated = lane.isolated and job.queue = lane.queue
                 and job.task = lane.task and job.priority = lane.priority
                 and job.due_at <= :now
                 and job.locked_by is null and job.paused_at is null and job.dead_at is null
                 and job.limit_key is null
           ) as oldest,
           (
               select json_array(
                   count(*), coalesce(sum(part.suspended), 0),
                   coalesce(sum(part.attempt > 0 and not part.suspended), 0),
                   min(case when not part.suspended then part.due_at end)
               )
               from (
                   select job.due_at, job.suspended, job.attempt
                   from reltask_jobs as job
                   where job.isolated = lane.isolated and job.queue = lane.queue
                     and job.task = lane.task and job.priority = lane.priority
                     and job.due_at > :now
                     and job.locked_by is null and job.paused_at is null and job.dead_at is null
                     and job.limit_key is null
                   order by job.due_at
                   limit (select most from share)
               ) as part
           ) as later
    from lanes as lane
    cross join share
    union all
    select lane.queue, lane.task, share.most,
           (
               select count(*)
               from (
                   select 1
                   from reltask_jobs as job
                   where job.queue = lane.queue and job.task = lane.task
                     and job.due_at <= :now
                     and job.locked_by is null and job.paused_at is null and job.dead_at is null
                     and job.limit_key is not null
                   limit (select most from share)
               )
           ) as due,
           (
               select min(job.due_at)
               from reltask_jobs as job
               where job.queue = lane.queue and job.task = lane.task
                 and job.due_at <= :now
                 and job.locked_by is null and job.paused_at is null and job.dead_at is null
                 and job.limit_key is not null
           ) as oldest,
           (
               select json_array(
                   count(*), coalesce(sum(part.suspended), 0),
                   coalesce(sum(part.attempt > 0 and not part.suspended), 0),
                   min(case when not part.suspended then part.due_at end)
               )
               from (
                   select job.due_at, job.suspended, job.attempt
                   from reltask_jobs as job
                   where job.queue = lane.queue and job.task = lane.task
                     and job.due_at > :now
                     and job.locked_by is null and job.paused_at is null and job.dead_at is null
                     and job.limit_key is not null
                   order by job.due_at
                   limit (select most from share)
               ) as part
           ) as later
    from limited_lanes as lane
    cross join share
)

select queue, task, sum(due) as due, max(due = most) as more_due, min(oldest) as oldest,
       sum(json_extract(later, '$[0]')) as later,
       max(json_extract(later, '$[0]') = most) as more_later,
       sum(json_extract(later, '$[1]')) as suspended,
       sum(json_extract(later, '$[2]')) as failing,
       min(json_extract(later, '$[3]')) as soonest,
       most
from counted
group by queue, task
order by queue, task;

select queue, task, count(*) as jobs, coalesce(sum(lock_expires_at < :now), 0) as lately,
       min(lock_expires_at) as at
from reltask_jobs
where locked_by is not null
group by queue, task
order by queue, task;

select queue, task, count(*) as jobs, 0 as lately, max(paused_at) as at
from (
    select queue, task, paused_at
    from reltask_jobs
    where paused_at is not null
    order by paused_at desc
    limit :most
)
group by queue, task
order by queue, task;

select queue, task, count(*) as jobs,
       coalesce(sum(dead_at > :now - 3600000000), 0) as lately, max(dead_at) as at
from (
    select queue, task, dead_at
    from reltask_jobs
    where dead_at is not null
    order by dead_at desc
    limit :most
)
group by queue, task
order by queue, task;

select task, count(*) as jobs, max(last_run_time) as last_run_time,
       min(case when locked_by is null and paused_at is null and dead_at is null
                then due_at end) as due_at
from reltask_jobs
where schedule is not null
group by task
order by task;

select queues, tasks, version, app_version, count(*) as workers, sum(concurrency) as places
from reltask_workers
where stopped_at is null and dead_at is null and alive_until >= :now
group by queues, tasks, version, app_version
order by queues, tasks, version, app_version;

select case when stopped_at is not null then 'stopped'
            when dead_at is not null or alive_until < :now then 'dead'
            else 'alive' end as state,
       count(*) as workers,
       coalesce(sum(heartbeat_at > :now - 3600000000), 0) as lately,
       max(heartbeat_at) as heartbeat_at
from reltask_workers
group by 1
order by 1;

select lease.name, lease.holder, lease.term,
       lease.holder is not null and lease.expires_at > :now as held,
       (
           select count(*)
           from reltask_lease_waiters as waiter
           where waiter.name = lease.name and waiter.waiting_until > :now
       ) as waiting,
       lease.expires_at
from reltask_leases as lease
order by lease.name;

select minute, sum(succeeded) as succeeded, sum(failed) as failed
from reltask_metrics
where minute > :now - 3660000000
group by minute
order by minute;

select task, sum(succeeded) as succeeded, sum(failed) as failed, sum(seconds) as seconds,
       sum(late) as late, max(late_most) as late_most
from reltask_metrics
where minute > :now - 3660000000
group by task
order by task;

select kind, name, reason, paused_by, paused_at
from reltask_pauses
order by kind, name;
