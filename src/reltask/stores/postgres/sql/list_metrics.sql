-- Purpose       List metrics, newest first.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per minute and task.
-- See           SQL.md: nullable now.

select metric.minute, metric.task, metric.succeeded, metric.failed, metric.seconds,
       metric.seconds_most, metric.late, metric.late_most
from reltask.metrics as metric
where metric.minute
      > coalesce(:now::timestamptz, statement_timestamp()) - :since::interval - interval '1 minute'
  and (:task::text is null or metric.task = :task::text)
order by metric.minute desc, metric.task;
