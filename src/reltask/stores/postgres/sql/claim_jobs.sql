-- Purpose       Claim up to :limit due jobs for :worker, and say when to ask again.
-- Precondition  Due, unclaimed, not paused, not dead; the worker serves the queue and knows the
--               task, and neither is paused.
-- Lock order    The claimed rows. Locked rows are skipped, so the statement never waits.
-- Returns       First the database's time, the next due time, the next lock expiry, whether there
--               are marks to fold, the first mark of a limit that this worker may take, and with
--               :counts, if nothing was claimed, this worker's rank among its idle peers, which
--               serve the same queues and know the same tasks, their number, and that of all
--               idle workers; then one row per claim. There due_at is null if it equals
--               next_run_time, slot_started_at if it is the time of the claim, steps if there are
--               none, and cancelled unless the slot may be.
-- See           SQL.md: nullable now, materialized CTE, skip locked, filtered index, generated
--               column, paused lanes.
--
-- A lane is one (isolated, queue, task, priority); the index jobs_claimable keeps each lane in
-- order of due time. The recursion goes from one lane to the next with one index seek each, so the
-- cost depends on the number of lanes, not of rows. From a task name that the worker does not know
-- it goes to the next name that it knows.
--
-- A job whose last two runs were lost is isolated. With :isolated at most one of them is claimed,
-- in its order of priority and due time among the others; without it, none.
--
-- Lanes are emptied in order of priority. So that low priorities do not starve, the first :oldest
-- places go to the lane whose head has waited longest, unless that is the first lane anyway.
--
-- A lock timeout that no constraint has refused must not make the statement fail. Outside of 1 ms
-- to 100 years it is claimed with the worker's own, and is answered as 1 ms more than 100 years:
-- the worker fails such a job.

with recursive
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now,
           array(select name from reltask.pauses where kind = 'queue') as paused_queues,
           array(select name from reltask.pauses where kind = 'task') as paused_tasks
),

lanes as (
    select kind.isolated, wanted.queue, head.task, head.priority, head.due_at,
           head.task = any (:tasks::text[]) and head.task <> all (parameters.paused_tasks) as known
    from parameters
    cross join lateral (
        select min(name) as name
        from pg_catalog.unnest(:tasks::text[]) as names (name)
        where name <> all (parameters.paused_tasks)
    ) as first_task
    join pg_catalog.unnest(:queues::text[]) as wanted (queue)
        on wanted.queue <> all (parameters.paused_queues)
    join (values (false), (true)) as kind (isolated) on kind.isolated <= :isolated::boolean
    cross join lateral (
        select task, priority, due_at
        from reltask.jobs
        where isolated = kind.isolated and queue = wanted.queue and task >= first_task.name
          and locked_by is null and paused_at is null and dead_at is null
          and limit_key is null
        order by isolated, queue, task, priority, due_at
        limit 1
    ) as head
    union all
    select lanes.isolated, lanes.queue, head.task, head.priority, head.due_at,
           head.task = any (:tasks::text[]) and head.task <> all (parameters.paused_tasks)
    from lanes
    cross join parameters
    cross join lateral (
        select case when lanes.known then lanes.task
                    else (
                        select min(name)
                        from pg_catalog.unnest(:tasks::text[]) as names (name)
                        where name > lanes.task and name <> all (parameters.paused_tasks)
                    ) end as task,
               case when lanes.known then lanes.priority else -1 end as priority
    ) as last
    cross join lateral (
        select task, priority, due_at
        from reltask.jobs
        where isolated = lanes.isolated and queue = lanes.queue
          and (task, priority) > (last.task, last.priority)
          and locked_by is null and paused_at is null and dead_at is null
          and limit_key is null
        order by isolated, queue, task, priority, due_at
        limit 1
    ) as head
),

due_lanes as materialized (
    select lanes.*,
           row_number() over (
               partition by lanes.isolated
               order by lanes.priority, lanes.due_at
           ) as nth,
           row_number() over (order by lanes.priority, lanes.due_at) as turn
    from lanes
    cross join parameters
    where lanes.known and lanes.due_at <= parameters.now
),

oldest as materialized (
    select head.id, lane.isolated
    from (select * from due_lanes order by due_at, turn limit 1) as lane
    cross join lateral (
        select job.id
        from reltask.jobs as job
        where job.isolated = lane.isolated
          and job.queue = lane.queue and job.task = lane.task and job.priority = lane.priority
          and job.due_at <= (select now from parameters)
          and job.locked_by is null and job.paused_at is null and job.dead_at is null
          and job.limit_key is null
        order by job.isolated, job.queue, job.task, job.priority, job.due_at
        limit case when lane.isolated then 1 else :oldest::integer end
        for update of job skip locked
    ) as head
    where :oldest::integer > 0 and lane.turn > 1
    limit :limit::integer
),

-- The inner and the outer limit together lock no more rows than are claimed.
due as materialized (
    select head.id
    from (select * from due_lanes order by turn) as lane
    cross join lateral (
        select job.id
        from reltask.jobs as job
        where job.isolated = lane.isolated
          and job.queue = lane.queue and job.task = lane.task and job.priority = lane.priority
          and job.due_at <= (select now from parameters)
          and job.locked_by is null and job.paused_at is null and job.dead_at is null
          and job.limit_key is null
          and job.id <> all (array(select id from oldest))
        order by job.isolated, job.queue, job.task, job.priority, job.due_at
        limit case when lane.isolated then 1 else :limit::integer end
        for update of job skip locked
    ) as head
    where not lane.isolated
       or lane.nth = 1 and not exists (select from oldest where oldest.isolated)
    limit :limit::integer - (select count(*) from oldest)
),

claimed as (
    update reltask.jobs as job
    set locked_by = :worker::text,
        claim_token = :token::uuid,
        locked_at = parameters.now,
        heartbeat_at = parameters.now,
        claim_timeout_ms = case when job.lock_timeout_ms not between 1 and 3155760000000
                                then 3155760000001
                                else coalesce(job.lock_timeout_ms, :lock_timeout_ms::bigint) end,
        lock_expires_at = parameters.now
            + case when job.lock_timeout_ms between 1 and 3155760000000 then job.lock_timeout_ms
                   else :lock_timeout_ms::bigint end::float8 * interval '1 millisecond',
        fence = job.fence + 1,
        attempt = job.attempt + 1,
        slot_started_at = coalesce(job.slot_started_at, parameters.now),
        suspended = false,
        -- unchanged, see SQL.md: generated column
        not_before = job.not_before
    from parameters
    where job.id = any (array(select id from due union all select id from oldest))
      and job.locked_by is null
    returning job.id, job.fence, job.task, job.key, job.args, job.queue, job.priority, job.schedule,
              job.slot_no, job.next_run_time, job.due_at, job.slot_started_at, job.locked_at,
              job.attempt, job.max_attempts, job.claim_timeout_ms, job.lock_expires_at,
              job.isolated, job.steps, job.parent_id, job.progress, job.headers, job.cancel_slot
),

alive as (
    update reltask.workers as worker
    set heartbeat_at = parameters.now,
        alive_until = parameters.now + :alive_for::interval,
        idle = case when (select count(*) from claimed) >= :limit::integer then false
                    else worker.idle or :counts::boolean and not exists (select from claimed) end,
        dead_at = null
    from parameters
    where worker.id = (
        select me.id
        from reltask.workers as me
        where me.id = :worker::text
          and (
              me.heartbeat_at < (select now from parameters) - interval '5 seconds'
              or me.dead_at is not null
              or me.idle and (select count(*) from claimed) >= :limit::integer
              or :counts::boolean and not me.idle and not exists (select from claimed)
          )
        for update skip locked
    )
),

fleet as (
    select count(*) filter (where other.is_peer and other.id < :worker::text) as rank,
           count(*) filter (where other.is_peer) + 1 as size,
           count(*) + 1 as idle
    from (
        select worker.*,
               worker.queues::text = me.queues::text
                   and worker.tasks::text = me.tasks::text as is_peer
        from reltask.workers as worker
        left join reltask.workers as me on me.id = :worker::text
    ) as other
    cross join parameters
    where :counts::boolean
      and other.idle and other.alive_until >= parameters.now
      and other.stopped_at is null and other.dead_at is null and other.id <> :worker::text
),

next_times (due_at) as (
    -- The first future job of each lane.
    select future.due_at
    from lanes
    cross join parameters
    cross join lateral (
        select job.due_at
        from reltask.jobs as job
        where job.isolated = lanes.isolated
          and job.queue = lanes.queue and job.task = lanes.task and job.priority = lanes.priority
          and job.due_at > parameters.now
          and job.locked_by is null and job.paused_at is null and job.dead_at is null
          and job.limit_key is null
        order by job.isolated, job.queue, job.task, job.priority, job.due_at
        limit 1
    ) as future
    where lanes.known
    union all
    -- A due head that was not claimed although there was room: another worker has locked it.
    select lanes.due_at
    from lanes
    cross join parameters
    where lanes.known and lanes.due_at <= parameters.now
      and (select count(*) from claimed) < :limit::integer
      and not exists (
          select from claimed
          where claimed.isolated = lanes.isolated and (
              claimed.isolated
              or claimed.queue = lanes.queue and claimed.task = lanes.task
              and claimed.priority = lanes.priority and claimed.due_at = lanes.due_at
          )
      )
),

-- The lanes of marks about limits: see claim_limited.sql.
marked_lanes as (
    (
        select mark.queue, mark.task
        from reltask.marks as mark
        where (mark.queue, mark.task) > ('', '')
        order by mark.queue, mark.task
        limit 1
    )
    union all
    select following.queue, following.task
    from marked_lanes
    cross join lateral (
        select mark.queue, mark.task
        from reltask.marks as mark
        where (mark.queue, mark.task) > (marked_lanes.queue, marked_lanes.task)
        order by mark.queue, mark.task
        limit 1
    ) as following
),

header as (
    select parameters.now,
           (select min(due_at) from next_times) as next_due,
           least(
               (
                   select lock_expires_at
                   from reltask.jobs
                   where locked_by is not null
                   order by lock_expires_at
                   limit 1
               ),
               (select min(lock_expires_at) from claimed)
           ) as next_expiry,
           exists (
               select
               from reltask.marks
               where queue = '' and task = '' and at <= parameters.now
           ) as marked,
           (
               select min(first.at)
               from marked_lanes as lane
               cross join lateral (
                   select mark.at
                   from reltask.marks as mark
                   where mark.queue = lane.queue and mark.task = lane.task
                   order by mark.queue, mark.task, mark.at
                   limit 1
               ) as first
               where lane.queue = ''
                  or lane.queue = any (:queues::text[]) and lane.task = any (:tasks::text[])
                  and lane.queue <> all (parameters.paused_queues)
                  and lane.task <> all (parameters.paused_tasks)
           ) as limited_at,
           case when :counts::boolean and not exists (select from claimed)
                then (select rank from fleet) end as fleet_rank,
           case when :counts::boolean and not exists (select from claimed)
                then (select size from fleet) end as fleet_size,
           case when :counts::boolean and not exists (select from claimed)
                then (select idle from fleet) end as fleet_idle
    from parameters
)

-- Values that all rows would repeat are sent once, in the first row.
select now, next_due, next_expiry, marked, limited_at, fleet_rank, fleet_size, fleet_idle,
       null as id, null as fence, null as task, null as key, null as args, null as queue,
       null as priority, null as schedule, null as slot_no, null as next_run_time, null as due_at,
       null as slot_started_at, null as attempt, null as max_attempts, null as claim_timeout_ms,
       null as isolated, null as steps, null as has_parent, null as progress, null as headers,
       null as cancelled
from header
union all
(
    select null, null, null, null, null, null, null, null, id, fence, task, key, args, queue,
           priority, schedule, slot_no, next_run_time, nullif(due_at, next_run_time),
           nullif(slot_started_at, locked_at), attempt, max_attempts, claim_timeout_ms, isolated,
           nullif(steps, 0), parent_id is not null, progress, headers, cancel_slot = slot_no
    from claimed
    order by claimed.priority, claimed.due_at, claimed.id
);
