-- Purpose       Claim up to :limit due jobs for :worker, and say when to ask again.
-- Precondition  Due, unclaimed, not paused, not dead; the worker serves the queue and knows the
--               task, and neither is paused.
-- Lock order    The first two statements only read, and an empty poll ends with them. The others
--               need the write lock.
-- Returns       Statement 1: the lanes. 2: next lock expiry, until when this worker counts as
--               alive, whether it is idle, whether there are marks, and the first mark of a limit
--               that it may take. 3: ids of one lane. 4: one row per claim. 6: this worker's rank
--               among its idle peers, which serve the same queues and know the same tasks, their
--               number, and that of all idle workers.
-- See           SQL.md: one writer, filtered index, JSON batch, mark, paused lanes.

-- A lane is one (isolated, queue, task, priority), in order of due time in the index. The recursion
-- goes from the head of one lane to the head of the next: the task's next priority, or the next
-- task that the worker knows. Each step is one index seek: the cost depends on the number of lanes,
-- not of jobs. Lanes of isolated jobs, whose last two runs were lost, are read with :isolated = 1.
-- One comparison, (task, priority) > (…), would read the whole lane that it leaves, because SQLite
-- seeks to its beginning and not to its end. `later` is the first future due time of the lane.
with recursive
served (task) as materialized (
    select value
    from json_each(:tasks)
    where value not in (select name from reltask_pauses where kind = 'task')
),

lane (head) as (
    select (
        select first.rowid
        from reltask_jobs as first
        where first.isolated = kind.value and first.queue = wanted.value
          and first.task >= (select min(task) from served)
          and first.locked_by is null and first.paused_at is null and first.dead_at is null
          and first.limit_key is null
        order by first.task, first.priority, first.due_at
        limit 1
    )
    from json_each(:queues) as wanted
    join json_each('[0, 1]') as kind on kind.value <= :isolated
    where wanted.value not in (select name from reltask_pauses where kind = 'queue')
    union all
    select coalesce(
        (
            select next.rowid
            from reltask_jobs as next
            where next.isolated = this.isolated and next.queue = this.queue
              and next.task = case when this.task in (select task from served)
                                   then this.task end
              and next.priority > this.priority
              and next.locked_by is null and next.paused_at is null and next.dead_at is null
              and next.limit_key is null
            order by next.priority, next.due_at
            limit 1
        ),
        (
            select other.rowid
            from reltask_jobs as other
            where other.isolated = this.isolated and other.queue = this.queue
              and other.task >= (
                  select min(served.task) from served where served.task > this.task
              )
              and other.locked_by is null and other.paused_at is null and other.dead_at is null
              and other.limit_key is null
            order by other.task, other.priority, other.due_at
            limit 1
        )
    )
    from lane
    join reltask_jobs as this on this.rowid = lane.head
)

select jobs.isolated, jobs.queue, jobs.task, jobs.priority, jobs.due_at,
       jobs.due_at <= :now as is_due,
       case when jobs.due_at > :now then jobs.due_at else (
           select min(future.due_at)
           from reltask_jobs as future
           where future.isolated = jobs.isolated
             and future.queue = jobs.queue and future.task = jobs.task
             and future.priority = jobs.priority
             and future.due_at > :now
             and future.locked_by is null and future.paused_at is null and future.dead_at is null
             and future.limit_key is null
       ) end as later
from lane
join reltask_jobs as jobs on jobs.rowid = lane.head
where jobs.task in (select task from served)
order by jobs.priority, jobs.due_at;

-- The next lock expiry, until when this worker counts as alive (0 if it was marked as dead),
-- whether it is idle, whether there are marks to fold, and the first mark of a limit: see
-- claim_limited.sql.
with recursive
lane (queue, task) as (
    select * from (
        select queue, task
        from reltask_marks
        where (queue, task) > ('', '')
        order by queue, task
        limit 1
    )
    union all
    select next.queue, next.task
    from lane
    join reltask_marks as next on next.rowid = (
        select marks.rowid
        from reltask_marks as marks
        where (marks.queue, marks.task) > (lane.queue, lane.task)
        order by marks.queue, marks.task
        limit 1
    )
)

select (select min(lock_expires_at) from reltask_jobs where locked_by is not null) as next_expiry,
       (
           select case when dead_at is null then alive_until else 0 end
           from reltask_workers
           where id = :worker
       ) as alive_until,
       (select idle from reltask_workers where id = :worker) as idle,
       exists (
           select 1 from reltask_marks where queue = '' and task = '' and at <= :now
       ) as marked,
       (
           select min((
               select min(marks.at)
               from reltask_marks as marks
               where marks.queue = lane.queue and marks.task = lane.task
           ))
           from lane
           where lane.queue = ''
              or lane.queue in (select value from json_each(:queues))
              and lane.task in (select value from json_each(:tasks))
              and lane.queue not in (select name from reltask_pauses where kind = 'queue')
              and lane.task not in (select name from reltask_pauses where kind = 'task')
       ) as limited_at;

-- The due jobs of one lane.
select id
from reltask_jobs
where isolated = :isolated and queue = :queue and task = :task and priority = :priority
  and due_at <= :now
  and locked_by is null and paused_at is null and dead_at is null and limit_key is null
order by due_at
limit :room;

-- The claim itself. A lock timeout outside of 1 ms to 100 years, which no constraint has refused,
-- is claimed with the worker's own, and is answered as 1 ms more than 100 years: the worker fails
-- such a job.
update reltask_jobs
set locked_by = :worker,
    claim_token = :token,
    locked_at = :now,
    heartbeat_at = :now,
    claim_timeout_ms = case when lock_timeout_ms not between 1 and 3155760000000
                            then 3155760000001
                            else coalesce(lock_timeout_ms, :lock_timeout_ms) end,
    lock_expires_at = :now + 1000 * case when lock_timeout_ms between 1 and 3155760000000
                                         then lock_timeout_ms else :lock_timeout_ms end,
    fence = fence + 1,
    attempt = attempt + 1,
    slot_started_at = coalesce(slot_started_at, :now),
    suspended = 0
where id in (select value from json_each(:ids))
  and locked_by is null and paused_at is null and dead_at is null
  and due_at <= :now
returning id, fence, task, key, args, queue, priority, schedule, slot_no, next_run_time, due_at,
          slot_started_at, locked_at, attempt, max_attempts, claim_timeout_ms, isolated,
          steps, parent_id is not null as has_parent, progress, headers,
          cancel_slot = slot_no as cancelled;

-- The worker is alive.
update reltask_workers
set heartbeat_at = :now,
    alive_until = :now + :alive_for,
    idle = case when :filled then 0 else max(idle, :looked_in_vain) end,
    dead_at = null
where id = :worker;

-- The other idle workers, and this one.
select count(*) filter (where is_peer and id < :worker) as rank,
       count(*) filter (where is_peer) + 1 as size,
       count(*) + 1 as idle
from (
    select reltask_workers.id,
           reltask_workers.queues = me.queues and reltask_workers.tasks = me.tasks as is_peer
    from reltask_workers
    left join reltask_workers as me on me.id = :worker
    where reltask_workers.idle = 1 and reltask_workers.alive_until >= :now
      and reltask_workers.stopped_at is null and reltask_workers.dead_at is null
      and reltask_workers.id <> :worker
);
