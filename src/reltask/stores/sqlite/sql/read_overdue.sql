-- Purpose       Find what has been due for :since and is unclaimed, and whether a lock has ended.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row: the number of lanes whose first job is overdue, their earliest and latest
--               due time, whether there are marks to fold, and whether a lock has ended.
-- See           SQL.md: filtered index.
--
-- A lane is one (isolated, queue, task, priority). The recursion goes from one lane to the next:
-- the next priority, task, queue or kind. Each step is one index seek, as in claim_jobs.sql.

with recursive
lane (head) as (
    select (
        select first.rowid
        from reltask_jobs as first
        where first.locked_by is null and first.paused_at is null and first.dead_at is null
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
)

select count(*) as lanes, min(jobs.due_at) as oldest, max(jobs.due_at) as newest,
       exists (
           select 1
           from reltask_marks
           where queue = '' and task in ('', 'limit') and at <= :now - :since
       ) as marked,
       exists (
           select 1 from reltask_jobs where locked_by is not null and lock_expires_at < :now
       ) as expired
from lane
join reltask_jobs as jobs on jobs.rowid = lane.head
where jobs.due_at <= :now - :since
  and not exists (
      select 1
      from reltask_pauses as pause
      where pause.kind = 'queue' and pause.name = jobs.queue
         or pause.kind = 'task' and pause.name = jobs.task
  );
