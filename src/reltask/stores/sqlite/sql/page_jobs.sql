-- Purpose       One page of the jobs in one state: due, later, suspended, claimed, paused or dead.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per job, in the order of the page; at is the time that it is ordered by.
-- Parameters    :after_at and :after_id are those of the last row of the page before, or null.
-- See           SQL.md: nullable now, filtered index.
--
-- Each state has its index, and the other parts of the statement read nothing: their condition on
-- :state is checked once. Jobs that wait are in lanes, which are walked as in claim_jobs.sql; each
-- gives one page at most. Jobs with a limit have lanes of their own, one per queue and task.

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
    where :state in ('due', 'later')
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
    where :state in ('due', 'later')
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

bounds as materialized (
    select case when :state = 'later' then :now + 1 else -9223372036854775808 end as low,
           case when :state = 'later' then 9223372036854775807 else :now end as high
),

heads as materialized (
    select page.value as id
    from lanes
    cross join bounds
    join json_each((
        select json_group_array(part.id)
        from (
            select job.id
            from reltask_jobs as job
            where job.isolated = lanes.isolated and job.queue = lanes.queue
              and job.task = lanes.task and job.priority = lanes.priority
              and job.due_at >= max(bounds.low, coalesce(:after_at, bounds.low))
              and job.due_at <= bounds.high
              and (:after_at is null or job.due_at > :after_at or job.id > :after_id)
              and job.locked_by is null and job.paused_at is null and job.dead_at is null
              and job.limit_key is null
              and not (job.suspended and :state = 'later')
            order by job.due_at, job.id
            limit :limit
        ) as part
    )) as page
    where (:task is null or lanes.task = :task) and (:queue is null or lanes.queue = :queue)
    union all
    select page.value
    from limited_lanes as lane
    cross join bounds
    join json_each((
        select json_group_array(part.id)
        from (
            select job.id
            from reltask_jobs as job
            where job.queue = lane.queue and job.task = lane.task
              and job.due_at >= max(bounds.low, coalesce(:after_at, bounds.low))
              and job.due_at <= bounds.high
              and (:after_at is null or job.due_at > :after_at or job.id > :after_id)
              and job.locked_by is null and job.paused_at is null and job.dead_at is null
              and job.limit_key is not null
              and not (job.suspended and :state = 'later')
            order by job.due_at, job.id
            limit :limit
        ) as part
    )) as page
    where (:task is null or lane.task = :task) and (:queue is null or lane.queue = :queue)
),

suspended as (
    select job.id, job.due_at as at
    from reltask_jobs as job
    where :state = 'suspended'
      and job.suspended and job.paused_at is null
      and job.due_at >= coalesce(:after_at, -9223372036854775808)
      and (:after_at is null or job.due_at > :after_at or job.id > :after_id)
      and (:task is null or job.task = :task) and (:queue is null or job.queue = :queue)
    order by job.due_at, job.id
    limit :limit
),

claimed as (
    select job.id, job.locked_at as at
    from reltask_jobs as job
    where :state = 'claimed'
      and job.locked_by is not null
      and job.locked_at >= coalesce(:after_at, -9223372036854775808)
      and (:after_at is null or job.locked_at > :after_at or job.id > :after_id)
      and (:task is null or job.task = :task) and (:queue is null or job.queue = :queue)
    order by job.locked_at, job.id
    limit :limit
),

paused as (
    select job.id, job.paused_at as at
    from reltask_jobs as job
    where :state = 'paused'
      and job.paused_at is not null and job.dead_at is null and job.locked_by is null
      and job.paused_at <= coalesce(:after_at, 9223372036854775807)
      and (:after_at is null or job.paused_at < :after_at or job.id < :after_id)
      and (:task is null or job.task = :task) and (:queue is null or job.queue = :queue)
    order by job.paused_at desc, job.id desc
    limit :limit
),

dead as (
    select job.id, job.dead_at as at
    from reltask_jobs as job
    where :state = 'dead'
      and job.dead_at is not null
      and job.dead_at <= coalesce(:after_at, 9223372036854775807)
      and (:after_at is null or job.dead_at < :after_at or job.id < :after_id)
      and (:task is null or job.task = :task) and (:queue is null or job.queue = :queue)
    order by job.dead_at desc, job.id desc
    limit :limit
),

chosen as materialized (
    select job.id, job.due_at as at
    from heads
    cross join reltask_jobs as job on job.id = heads.id
    union all
    select id, at from suspended
    union all
    select id, at from claimed
    union all
    select id, at from paused
    union all
    select id, at from dead
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
cross join reltask_jobs as job on job.id = chosen.id
order by case when :state in ('paused', 'dead') then chosen.at end desc,
         case when :state in ('paused', 'dead') then job.id end desc,
         chosen.at, job.id
limit :limit;
