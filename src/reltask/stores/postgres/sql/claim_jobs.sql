-- Purpose       Claim up to :limit due jobs for :worker, and say when to ask again.
-- Precondition  Due, unclaimed, not paused, not dead; the worker serves the queue and knows the
--               task.
-- Lock order    The claimed rows. Locked rows are skipped, so the statement never waits.
-- Returns       First the database's time, the next due time, the next lock expiry and whether
--               there are marks to fold, even if nothing was claimed; then one row per claim. There
--               due_at is null if it equals next_run_time, slot_started_at if it is the time of the
--               claim, and steps if there are none.
-- See           SQL.md: nullable now, materialized CTE, skip locked, filtered index, generated
--               column.
--
-- A lane is one (isolated, queue, task, priority); the index jobs_claimable keeps each lane in
-- order of due time. The recursion goes from one lane to the next with one index seek each, so the
-- cost depends on the number of lanes, not of rows. From a task name that the worker does not know
-- it goes to the next name that it knows.
--
-- A job whose last two runs were lost is isolated. With :isolated at most one of them is claimed,
-- in its order of priority and due time among the others; without it, none.
--
-- A lock timeout that no constraint has refused must not make the statement fail. Outside of 1 ms
-- to 100 years it is claimed with the worker's own, and is answered as 1 ms more than 100 years:
-- the worker fails such a job.

with recursive
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now,
           (select min(name) from pg_catalog.unnest(:tasks::text[]) as names (name)) as first_task
),

lanes as (
    select kind.isolated, wanted.queue, head.task, head.priority, head.due_at,
           head.task = any (:tasks::text[]) as known
    from parameters
    cross join pg_catalog.unnest(:queues::text[]) as wanted (queue)
    join (values (false), (true)) as kind (isolated) on kind.isolated <= :isolated::boolean
    cross join lateral (
        select task, priority, due_at
        from reltask.jobs
        where isolated = kind.isolated and queue = wanted.queue and task >= parameters.first_task
          and locked_by is null and paused_at is null and dead_at is null
        order by isolated, queue, task, priority, due_at
        limit 1
    ) as head
    union all
    select lanes.isolated, lanes.queue, head.task, head.priority, head.due_at,
           head.task = any (:tasks::text[])
    from lanes
    cross join lateral (
        select case when lanes.known then lanes.task
                    else (
                        select min(name)
                        from pg_catalog.unnest(:tasks::text[]) as names (name)
                        where name > lanes.task
                    ) end as task,
               case when lanes.known then lanes.priority else -1 end as priority
    ) as last
    cross join lateral (
        select task, priority, due_at
        from reltask.jobs
        where isolated = lanes.isolated and queue = lanes.queue
          and (task, priority) > (last.task, last.priority)
          and locked_by is null and paused_at is null and dead_at is null
        order by isolated, queue, task, priority, due_at
        limit 1
    ) as head
),

-- The inner and the outer limit together lock no more rows than are claimed.
due as materialized (
    select head.id
    from (
        select lanes.*,
               row_number() over (
                   partition by lanes.isolated
                   order by lanes.priority, lanes.due_at
               ) as nth
        from lanes
        cross join parameters
        where lanes.known and lanes.due_at <= parameters.now
        order by lanes.priority, lanes.due_at
    ) as lane
    cross join lateral (
        select job.id
        from reltask.jobs as job
        where job.isolated = lane.isolated
          and job.queue = lane.queue and job.task = lane.task and job.priority = lane.priority
          and job.due_at <= (select now from parameters)
          and job.locked_by is null and job.paused_at is null and job.dead_at is null
        order by job.isolated, job.queue, job.task, job.priority, job.due_at
        limit case when lane.isolated then 1 else :limit::integer end
        for update of job skip locked
    ) as head
    where not lane.isolated or lane.nth = 1
    limit :limit::integer
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
    where job.id = any (array(select id from due))
      and job.locked_by is null
    returning job.id, job.fence, job.task, job.key, job.args, job.queue, job.priority, job.schedule,
              job.slot_no, job.next_run_time, job.due_at, job.slot_started_at, job.locked_at,
              job.attempt, job.max_attempts, job.claim_timeout_ms, job.lock_expires_at,
              job.isolated, job.steps, job.parent_id, job.progress, job.headers
),

alive as (
    update reltask.workers as worker
    set heartbeat_at = parameters.now,
        alive_until = parameters.now + :alive_for::interval,
        dead_at = null
    from parameters
    where worker.id = (
        select me.id
        from reltask.workers as me
        where me.id = :worker::text
          and (
              me.heartbeat_at < (select now from parameters) - interval '5 seconds'
              or me.dead_at is not null
          )
        for update skip locked
    )
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
           exists (select from reltask.marks where at <= parameters.now) as marked
    from parameters
)

-- Values that all rows would repeat are sent once, in the first row.
select now, next_due, next_expiry, marked, null as id, null as fence, null as task, null as key,
       null as args, null as queue, null as priority, null as schedule, null as slot_no,
       null as next_run_time, null as due_at, null as slot_started_at, null as attempt,
       null as max_attempts, null as claim_timeout_ms, null as isolated, null as steps,
       null as has_parent, null as progress, null as headers
from header
union all
(
    select null, null, null, null, id, fence, task, key, args, queue, priority, schedule,
           slot_no, next_run_time, nullif(due_at, next_run_time),
           nullif(slot_started_at, locked_at), attempt, max_attempts, claim_timeout_ms, isolated,
           nullif(steps, 0), parent_id is not null, progress, headers
    from claimed
    order by claimed.priority, claimed.due_at, claimed.id
);
