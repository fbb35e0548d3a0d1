-- Purpose       List metrics, newest first.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per minute and task.

select minute, task, succeeded, failed, seconds, seconds_most, late, late_most
from reltask_metrics
where minute > :now - :since - 60000000
  and (:task is null or task = :task)
order by minute desc, task;
