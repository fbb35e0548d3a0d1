-- Purpose       List the queues and tasks that are paused.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per pause, the oldest first. due is the number of jobs that are due and
--               unclaimed, and would be claimed but for this pause or another.
-- See           SQL.md: paused lanes, filtered index.

select pause.kind, pause.name, pause.reason, pause.paused_by, pause.paused_at,
       (
           select count(*)
           from reltask_jobs as job
           where (
                 pause.kind = 'queue' and job.queue = pause.name
                 or pause.kind = 'task' and job.task = pause.name
             )
             and job.due_at <= :now
             and job.locked_by is null and job.paused_at is null and job.dead_at is null
       ) as due
from reltask_pauses as pause
order by pause.paused_at, pause.kind, pause.name;
