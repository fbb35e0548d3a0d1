-- Purpose       Claim due jobs that have limits, and say when to ask again.
-- Precondition  As for claim_jobs.sql; and each of the job's keys has a free place, and a token if
--               it has a rate. A function that resumes needs no token.
-- Lock order    The first two statements only read, and a look that finds no due mark ends with
--               them. The others need the write lock.
-- Returns       Statement 1: the lanes of marks. 2: keys with a due mark in one lane. 3: places
--               that became free. 4: one key. 5: the lanes of jobs at a key. 6: jobs of one lane.
--               10: the next mark.
-- See           SQL.md: one writer, filtered index, JSON batch, limit, paused lanes.
--
-- The jobs are claimed by a statement of claim_jobs.sql. There is one writer, so what is read here
-- is true until the commit: stores/sqlite/limits.py decides job by job.

-- The lanes of marks that this worker may take: those of its queues and tasks, and those that are
-- for all, because places or tokens became free.
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

select lane.queue, lane.task,
       (
           select min(marks.at)
           from reltask_marks as marks
           where marks.queue = lane.queue and marks.task = lane.task
       ) as at
from lane
where lane.queue = ''
   or lane.queue in (select value from json_each(:queues))
   and lane.task in (select value from json_each(:tasks))
   and lane.queue not in (select name from reltask_pauses where kind = 'queue')
   and lane.task not in (select name from reltask_pauses where kind = 'task');

-- The keys with the oldest due marks of a lane.
select distinct name
from (
    select name
    from reltask_marks
    where queue = :queue and task = :task and at <= :now
    order by at, seq
    limit :room
);

-- All due marks of a key in a lane.
delete from reltask_marks
where kind = 'limit' and name = :key and queue = :queue and task = :task and at <= :now
returning freed;

-- A key: its limit, and what is taken of it. Tokens are as they are now.
select rule.name, rule.rate_count, rule.rate_period_ms, counter.key is not null as is_counted,
       coalesce(rule.running, 1000000) - coalesce(counter.running, 0) as room,
       case when rule.rate_count is null then 1000000.0
            when counter.key is null then cast(rule.burst as real)
            else min(
                counter.tokens + max(:now - counter.refilled_at, 0) / 1000.0
                    * rule.rate_count / rule.rate_period_ms,
                cast(rule.burst as real)
            ) end as tokens,
       coalesce(counter.running, 0) as running,
       exists (
           select 1
           from reltask_jobs
           where limit_key = :key
             and locked_by is null and paused_at is null and dead_at is null
             and limit_key is not null
       ) as has_queue
from reltask_limits as rule
left join reltask_limit_keys as counter on counter.key = :key
where rule.name = substr(:key, 1, instr(:key || ':', ':') - 1);

-- The lanes of jobs at a key, as in claim_jobs.sql; those that have a due job.
with recursive
lane (head) as (
    select (
        select first.rowid
        from reltask_jobs as first
        where first.limit_key = :key
          and first.locked_by is null and first.paused_at is null and first.dead_at is null
          and first.limit_key is not null
        order by first.isolated, first.suspended, first.queue, first.task, first.priority,
                 first.due_at
        limit 1
    )
    union all
    select (
        select next.rowid
        from reltask_jobs as next
        where next.limit_key = :key
          and (next.isolated, next.suspended, next.queue, next.task, next.priority)
              > (this.isolated, this.suspended, this.queue, this.task, this.priority)
          and next.locked_by is null and next.paused_at is null and next.dead_at is null
          and next.limit_key is not null
        order by next.isolated, next.suspended, next.queue, next.task, next.priority, next.due_at
        limit 1
    )
    from lane
    join reltask_jobs as this on this.rowid = lane.head
)

select jobs.isolated, jobs.suspended, jobs.queue, jobs.task, jobs.priority,
       jobs.queue in (select value from json_each(:queues))
           and jobs.task in (select value from json_each(:tasks))
           and jobs.queue not in (select name from reltask_pauses where kind = 'queue')
           and jobs.task not in (select name from reltask_pauses where kind = 'task') as is_known
from lane
join reltask_jobs as jobs on jobs.rowid = lane.head
where jobs.due_at <= :now;

-- The due jobs of one lane.
select id, priority, due_at, limits
from reltask_jobs
where limit_key = :key and isolated = :isolated and suspended = :suspended
  and queue = :queue and task = :task and priority = :priority
  and due_at <= :now
  and locked_by is null and paused_at is null and dead_at is null and limit_key is not null
order by due_at
limit :room;

-- What is taken of a key now.
insert into reltask_limit_keys (key, name, running, tokens, refilled_at, seq)
values (:key, :name, :running, :tokens, :now, 1)
on conflict (key) do update
set running = excluded.running,
    tokens = excluded.tokens,
    refilled_at = excluded.refilled_at,
    seq = seq + 1;

-- A job waits at another of its keys.
update reltask_jobs
set limit_key = :key
where id = :id;

-- Look at a key again; one mark of a lane that only others may take is enough, unless it is for a
-- job that is due later.
insert into reltask_marks (queue, task, at, kind, name)
select :queue, :task, :at, 'limit', :key
where :queue = '' or not exists (
    select 1
    from reltask_marks
    where kind = 'limit' and name = :key and queue = :queue and task = :task
      and at <= :at + 1000000
);

-- The first mark of a lane.
select min(at) as at
from reltask_marks
where queue = :queue and task = :task;
