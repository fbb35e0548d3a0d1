-- Purpose       Find what has been due for :since and is unclaimed, and whether a lock has ended.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row: the number of lanes whose first job is overdue, their earliest and latest
--               due time, whether there are marks to fold, and whether a lock has ended.
-- See           SQL.md: nullable now, materialized CTE, filtered index.
--
-- A lane is one (isolated, queue, task, priority). The recursion goes from one lane to the next
-- with one index seek each, as in claim_jobs.sql, but through all of them.

with recursive
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now,
           coalesce(:now::timestamptz, statement_timestamp()) - :since::interval as overdue
),

lanes as (
    (
        select isolated, queue, task, priority, due_at
        from reltask.jobs
        where locked_by is null and paused_at is null and dead_at is null and limit_key is null
        order by isolated, queue, task, priority, due_at
        limit 1
    )
    union all
    select head.isolated, head.queue, head.task, head.priority, head.due_at
    from lanes
    cross join lateral (
        select isolated, queue, task, priority, due_at
        from reltask.jobs
        where (isolated, queue, task, priority)
              > (lanes.isolated, lanes.queue, lanes.task, lanes.priority)
          and locked_by is null and paused_at is null and dead_at is null and limit_key is null
        order by isolated, queue, task, priority, due_at
        limit 1
    ) as head
)

select count(*) as lanes, min(lanes.due_at) as oldest, max(lanes.due_at) as newest,
       exists (
           select
           from reltask.marks
           where queue = '' and task = any (array['', 'limit'])
             and at <= (select overdue from parameters)
       ) as marked,
       exists (
           select
           from reltask.jobs
           where locked_by is not null and lock_expires_at < (select now from parameters)
       ) as expired
from lanes
where lanes.due_at <= (select overdue from parameters)
  and not exists (
      select
      from reltask.pauses as pause
      where pause.kind = 'queue' and pause.name = lanes.queue
         or pause.kind = 'task' and pause.name = lanes.task
  );
