-- Purpose       One page of the jobs in one state: due, later, suspended, claimed, paused or dead.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per job, in the order of the page; at is the time that it is ordered by.
-- Parameters    :after_at and :after_id are those of the last row of the page before, or null.
-- See           SQL.md: nullable now, materialized CTE, filtered index.
--
--     due         due_at, the oldest first, whatever it waits for
--     later       due_at, the soonest first; suspended ones are a list of their own
--     suspended   due_at, the soonest first
--     claimed     locked_at, the longest first
--     paused      paused_at, the latest first
--     dead        dead_at, the latest first
--
-- Each state has its index, and the other parts of the statement read nothing: their condition on
-- :state is checked once. Jobs that wait are in lanes, which are walked as in claim_jobs.sql; each
-- gives one page at most. Jobs with a limit have lanes of their own, one per queue and task.

with recursive
parameters as materialized (
    select case when :state::text = 'later'
                then coalesce(:now::timestamptz, statement_timestamp())
                else timestamptz '-infinity' end as low,
           case when :state::text = 'later'
                then timestamptz 'infinity'
                else coalesce(:now::timestamptz, statement_timestamp()) end as high,
           coalesce(:after_at::timestamptz, timestamptz '-infinity') as floor_at,
           coalesce(:after_id::uuid, uuid '00000000-0000-0000-0000-000000000000') as floor_id,
           coalesce(:after_at::timestamptz, timestamptz 'infinity') as ceiling_at,
           coalesce(:after_id::uuid, uuid 'ffffffff-ffff-ffff-ffff-ffffffffffff') as ceiling_id
),

lanes as (
    (
        select isolated, queue, task, priority
        from reltask.jobs
        where :state::text in ('due', 'later')
          and locked_by is null and paused_at is null and dead_at is null and limit_key is null
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
          and locked_by is null and paused_at is null and dead_at is null and limit_key is null
        order by isolated, queue, task, priority, due_at
        limit 1
    ) as head
),

limited_lanes as (
    (
        select queue, task
        from reltask.jobs
        where :state::text in ('due', 'later')
          and locked_by is null and paused_at is null and dead_at is null
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

heads (id, at) as (
    select head.id, head.due_at
    from lanes
    cross join parameters
    cross join lateral (
        select job.id, job.due_at
        from reltask.jobs as job
        where job.isolated = lanes.isolated and job.queue = lanes.queue
          and job.task = lanes.task and job.priority = lanes.priority
          and job.due_at > parameters.low and job.due_at <= parameters.high
          and (job.due_at, job.id) > (parameters.floor_at, parameters.floor_id)
          and job.locked_by is null and job.paused_at is null and job.dead_at is null
          and job.limit_key is null
          and not (job.suspended and :state::text = 'later')
        order by job.due_at, job.id
        limit :limit::integer
    ) as head
    where (:task::text is null or lanes.task = :task::text)
      and (:queue::text is null or lanes.queue = :queue::text)
    union all
    select head.id, head.due_at
    from limited_lanes as lane
    cross join parameters
    cross join lateral (
        select job.id, job.due_at
        from reltask.jobs as job
        where job.queue = lane.queue and job.task = lane.task
          and job.due_at > parameters.low and job.due_at <= parameters.high
          and (job.due_at, job.id) > (parameters.floor_at, parameters.floor_id)
          and job.locked_by is null and job.paused_at is null and job.dead_at is null
          and job.limit_key is not null
          and not (job.suspended and :state::text = 'later')
        order by job.due_at, job.id
        limit :limit::integer
    ) as head
    where (:task::text is null or lane.task = :task::text)
      and (:queue::text is null or lane.queue = :queue::text)
    order by 2, 1
    limit :limit::integer
),

waiting as (
    select id, at, row_number() over (order by at, id) as nth
    from heads
),

suspended as (
    select job.id, job.due_at as at, row_number() over (order by job.due_at, job.id) as nth
    from reltask.jobs as job
    cross join parameters
    where :state::text = 'suspended'
      and job.suspended and job.paused_at is null
      and (job.due_at, job.id) > (parameters.floor_at, parameters.floor_id)
      and (:task::text is null or job.task = :task::text)
      and (:queue::text is null or job.queue = :queue::text)
    order by job.due_at, job.id
    limit :limit::integer
),

claimed as (
    select job.id, job.locked_at as at, row_number() over (order by job.locked_at, job.id) as nth
    from reltask.jobs as job
    cross join parameters
    where :state::text = 'claimed'
      and job.locked_by is not null
      and (job.locked_at, job.id) > (parameters.floor_at, parameters.floor_id)
      and (:task::text is null or job.task = :task::text)
      and (:queue::text is null or job.queue = :queue::text)
    order by job.locked_at, job.id
    limit :limit::integer
),

paused as (
    select job.id, job.paused_at as at,
           row_number() over (order by job.paused_at desc, job.id desc) as nth
    from reltask.jobs as job
    cross join parameters
    where :state::text = 'paused'
      and job.paused_at is not null and job.dead_at is null and job.locked_by is null
      and (job.paused_at, job.id) < (parameters.ceiling_at, parameters.ceiling_id)
      and (:task::text is null or job.task = :task::text)
      and (:queue::text is null or job.queue = :queue::text)
    order by job.paused_at desc, job.id desc
    limit :limit::integer
),

dead as (
    select job.id, job.dead_at as at,
           row_number() over (order by job.dead_at desc, job.id desc) as nth
    from reltask.jobs as job
    cross join parameters
    where :state::text = 'dead'
      and job.dead_at is not null
      and (job.dead_at, job.id) < (parameters.ceiling_at, parameters.ceiling_id)
      and (:task::text is null or job.task = :task::text)
      and (:queue::text is null or job.queue = :queue::text)
    order by job.dead_at desc, job.id desc
    limit :limit::integer
),

chosen as materialized (
    table waiting
    union all
    table suspended
    union all
    table claimed
    union all
    table paused
    union all
    table dead
)

select chosen.at,
       job.id, job.task, job.key, job.queue, job.priority,
       case when job.dead_at is not null then 'dead'
            when job.locked_by is not null then 'claimed'
            when job.paused_at is not null then 'paused'
            when job.suspended then 'suspended'
            else 'ready' end as state,
       job.schedule, job.slot_no, job.next_run_time, job.due_at, job.last_run_time, job.attempt,
       job.max_attempts, job.fence, job.locked_by, job.locked_at, job.heartbeat_at,
       job.lock_expires_at, job.progress, job.isolated, job.created_at, job.steps, job.parent_id
from chosen
cross join lateral (
    select *
    from reltask.jobs as one
    where one.id = chosen.id
    limit 1
) as job
order by chosen.nth;
