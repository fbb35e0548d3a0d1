-- Purpose       Read what the overview shows: one statement every two seconds, for all viewers.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row: the database's time, and JSON arrays of lanes by queue and task, claimed,
--               paused and dead jobs by queue and task, recurring tasks, live workers by what they
--               serve, workers by state, leases, the runs of the last hour by minute and by task,
--               and pauses. Times are microseconds since 1970.
-- Parameters    :most is where counting stops. With more than two lanes each is counted up to a
--               smaller number, which is returned as most.
-- See           SQL.md: nullable now, materialized CTE, filtered index, exact types.
--
-- The recursion goes from lane to lane, one index seek each, as in claim_jobs.sql. So the cost
-- depends on the number of lanes and on :most, not on the number of jobs. Jobs with a limit have
-- another index, and lanes of their own: one per queue and task, whatever their keys.

with recursive
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

lanes as (
    (
        select isolated, queue, task, priority
        from reltask.jobs
        where locked_by is null and paused_at is null and dead_at is null and limit_key is null
        order by isolated, queue, task, priority, due_at
        limit 1
    )
    union all
    select head.isolated, head.queue, head.task, head.priority
    from lanes
    cross join lateral (
        select isolated, queue, task, priority
        from reltask.jobs
        where (isolated, queue, task, priority)
              > (lanes.isolated, lanes.queue, lanes.task, lanes.priority)
          and locked_by is null and paused_at is null and dead_at is null
          and limit_key is null
        order by isolated, queue, task, priority, due_at
        limit 1
    ) as head
),

limited_lanes as (
    (
        select queue, task
        from reltask.jobs
        where locked_by is null and paused_at is null and dead_at is null
          and limit_key is not null
        order by queue, task, due_at
        limit 1
    )
    union all
    select head.queue, head.task
    from limited_lanes as lane
    cross join lateral (
        select queue, task
        from reltask.jobs
        where (queue, task) > (lane.queue, lane.task)
          and locked_by is null and paused_at is null and dead_at is null
          and limit_key is not null
        order by queue, task, due_at
        limit 1
    ) as head
),

share as materialized (
    select least(
               :most::bigint,
               greatest(
                   :most::bigint / 100::bigint,
                   2::bigint * :most::bigint / greatest(count(*), 1::bigint)
               )
           ) as most
    from (
        select from lanes
        union all
        select from limited_lanes
    ) as all_lanes
),

plain as materialized (
    select lanes.queue, lanes.task,
           sum(due.jobs)::bigint as due,
           bool_or(due.jobs = share.most) as more_due,
           min(due.oldest) as oldest,
           sum(later.jobs)::bigint as later,
           bool_or(later.jobs = share.most) as more_later,
           sum(later.suspended)::bigint as suspended,
           sum(later.failing)::bigint as failing,
           min(later.soonest) as soonest
    from lanes
    cross join parameters
    cross join share
    cross join lateral (
        select count(*) as jobs, min(part.due_at) as oldest
        from (
            select job.due_at
            from reltask.jobs as job
            where job.isolated = lanes.isolated and job.queue = lanes.queue
              and job.task = lanes.task and job.priority = lanes.priority
              and job.due_at <= parameters.now
              and job.locked_by is null and job.paused_at is null and job.dead_at is null
              and job.limit_key is null
            order by job.due_at
            limit share.most
        ) as part
    ) as due
    cross join lateral (
        select count(*) as jobs,
               count(*) filter (where part.suspended) as suspended,
               count(*) filter (where part.attempt > 0 and not part.suspended) as failing,
               min(part.due_at) filter (where not part.suspended) as soonest
        from (
            select job.due_at, job.suspended, job.attempt
            from reltask.jobs as job
            where job.isolated = lanes.isolated and job.queue = lanes.queue
              and job.task = lanes.task and job.priority = lanes.priority
              and job.due_at > parameters.now
              and job.locked_by is null and job.paused_at is null and job.dead_at is null
              and job.limit_key is null
            order by job.due_at
            limit share.most
        ) as part
    ) as later
    group by lanes.queue, lanes.task
),

limited as materialized (
    select lane.queue, lane.task, due.jobs as due, due.jobs = share.most as more_due, due.oldest,
           later.jobs as later, later.jobs = share.most as more_later,
           later.suspended, later.failing, later.soonest
    from limited_lanes as lane
    cross join parameters
    cross join share
    cross join lateral (
        select count(*) as jobs, min(part.due_at) as oldest
        from (
            select job.due_at
            from reltask.jobs as job
            where job.queue = lane.queue and job.task = lane.task
              and job.due_at <= parameters.now
              and job.locked_by is null and job.paused_at is null and job.dead_at is null
              and job.limit_key is not null
            order by job.due_at
            limit share.most
        ) as part
    ) as due
    cross join lateral (
        select count(*) as jobs,
               count(*) filter (where part.suspended) as suspended,
               count(*) filter (where part.attempt > 0 and not part.suspended) as failing,
               min(part.due_at) filter (where not part.suspended) as soonest
        from (
            select job.due_at, job.suspended, job.attempt
            from reltask.jobs as job
            where job.queue = lane.queue and job.task = lane.task
              and job.due_at > parameters.now
              and job.locked_by is null and job.paused_at is null and job.dead_at is null
              and job.limit_key is not null
            order by job.due_at
            limit share.most
        ) as part
    ) as later
),

counted as materialized (
    select both_kinds.queue, both_kinds.task,
           sum(both_kinds.due)::bigint as due,
           bool_or(both_kinds.more_due) as more_due,
           min(both_kinds.oldest) as oldest,
           sum(both_kinds.later)::bigint as later,
           bool_or(both_kinds.more_later) as more_later,
           sum(both_kinds.suspended)::bigint as suspended,
           sum(both_kinds.failing)::bigint as failing,
           min(both_kinds.soonest) as soonest
    from (
        table plain
        union all
        table limited
    ) as both_kinds
    group by both_kinds.queue, both_kinds.task
),

claimed as materialized (
    select job.queue, job.task, count(*) as jobs,
           count(*) filter (where job.lock_expires_at < parameters.now) as expired,
           min(job.lock_expires_at) as expires_at
    from reltask.jobs as job
    cross join parameters
    where job.locked_by is not null
    group by job.queue, job.task
),

paused as materialized (
    select part.queue, part.task, count(*) as jobs, max(part.paused_at) as at
    from (
        select job.queue, job.task, job.paused_at
        from reltask.jobs as job
        where job.paused_at is not null
        order by job.paused_at desc
        limit :most::bigint
    ) as part
    group by part.queue, part.task
),

dead as materialized (
    select part.queue, part.task, count(*) as jobs,
           count(*) filter (
               where part.dead_at > parameters.now - interval '1 hour'
           ) as lately,
           max(part.dead_at) as at
    from (
        select job.queue, job.task, job.dead_at
        from reltask.jobs as job
        where job.dead_at is not null
        order by job.dead_at desc
        limit :most::bigint
    ) as part
    cross join parameters
    group by part.queue, part.task
),

recurring as materialized (
    select job.task, count(*) as jobs, max(job.last_run_time) as last_run_time,
           min(job.due_at) filter (
               where job.locked_by is null and job.paused_at is null and job.dead_at is null
           ) as due_at
    from reltask.jobs as job
    where job.schedule is not null
    group by job.task
),

known as materialized (
    select worker.queues::text as queues, worker.tasks::text as tasks, worker.version,
           worker.app_version, worker.concurrency, worker.heartbeat_at,
           case when worker.stopped_at is not null then 'stopped'
                when worker.dead_at is not null or worker.alive_until < parameters.now then 'dead'
                else 'alive' end as state
    from reltask.workers as worker
    cross join parameters
),

fleet as materialized (
    select known.queues, known.tasks, known.version, known.app_version,
           count(*) as workers, sum(known.concurrency)::bigint as places
    from known
    where known.state = 'alive'
    group by known.queues, known.tasks, known.version, known.app_version
),

states as materialized (
    select known.state, count(*) as workers, max(known.heartbeat_at) as heartbeat_at,
           count(*) filter (
               where known.heartbeat_at > parameters.now - interval '1 hour'
           ) as lately
    from known
    cross join parameters
    group by known.state
),

lease as materialized (
    select lease.name, lease.holder, lease.term, lease.expires_at,
           lease.holder is not null and lease.expires_at > parameters.now as held,
           (
               select count(*)
               from reltask.lease_waiters as waiter
               where waiter.name = lease.name and waiter.waiting_until > parameters.now
           ) as waiting
    from reltask.leases as lease
    cross join parameters
),

hour as materialized (
    select metric.minute, metric.task, metric.succeeded, metric.failed, metric.seconds,
           metric.late, metric.late_most
    from reltask.metrics as metric
    cross join parameters
    where metric.minute > parameters.now - interval '61 minutes'
)

select (extract(epoch from parameters.now) * 1000000::numeric)::bigint as now,
       (select most from share) as most,
       (
           select pg_catalog.json_agg(pg_catalog.json_build_array(
               queue, task, due, more_due,
               (extract(epoch from oldest) * 1000000::numeric)::bigint,
               later, more_later, suspended, failing,
               (extract(epoch from soonest) * 1000000::numeric)::bigint
           ) order by queue, task)
           from counted
       ) as lanes,
       (
           select pg_catalog.json_agg(pg_catalog.json_build_array(
               queue, task, jobs, expired,
               (extract(epoch from expires_at) * 1000000::numeric)::bigint
           ) order by queue, task)
           from claimed
       ) as claimed,
       (
           select pg_catalog.json_agg(pg_catalog.json_build_array(
               queue, task, jobs, 0, (extract(epoch from at) * 1000000::numeric)::bigint
           ) order by queue, task)
           from paused
       ) as paused,
       (
           select pg_catalog.json_agg(pg_catalog.json_build_array(
               queue, task, jobs, lately, (extract(epoch from at) * 1000000::numeric)::bigint
           ) order by queue, task)
           from dead
       ) as dead,
       (
           select pg_catalog.json_agg(pg_catalog.json_build_array(
               task, jobs, (extract(epoch from last_run_time) * 1000000::numeric)::bigint,
               (extract(epoch from due_at) * 1000000::numeric)::bigint
           ) order by task)
           from recurring
       ) as recurring,
       (
           select pg_catalog.json_agg(pg_catalog.json_build_array(
               queues, tasks, version, app_version, workers, places
           ) order by queues, tasks, version, app_version)
           from fleet
       ) as fleet,
       (
           select pg_catalog.json_agg(pg_catalog.json_build_array(
               state, workers, lately,
               (extract(epoch from heartbeat_at) * 1000000::numeric)::bigint
           ) order by state)
           from states
       ) as states,
       (
           select pg_catalog.json_agg(pg_catalog.json_build_array(
               name, holder, term, held, waiting,
               (extract(epoch from expires_at) * 1000000::numeric)::bigint
           ) order by name)
           from lease
       ) as leases,
       (
           select pg_catalog.json_agg(pg_catalog.json_build_array(
               (extract(epoch from minute) * 1000000::numeric)::bigint, succeeded, failed
           ) order by minute)
           from (
               select minute, sum(succeeded)::bigint as succeeded, sum(failed)::bigint as failed
               from hour
               group by minute
           ) as by_minute
       ) as minutes,
       (
           select pg_catalog.json_agg(pg_catalog.json_build_array(
               task, succeeded, failed, seconds, late, late_most
           ) order by task)
           from (
               select task, sum(succeeded)::bigint as succeeded, sum(failed)::bigint as failed,
                      sum(seconds) as seconds, sum(late) as late, max(late_most) as late_most
               from hour
               group by task
           ) as by_task
       ) as tasks,
       (
           select pg_catalog.json_agg(pg_catalog.json_build_array(
               kind, name, reason, paused_by,
               (extract(epoch from paused_at) * 1000000::numeric)::bigint
           ) order by kind, name)
           from reltask.pauses
       ) as pauses
from parameters;
