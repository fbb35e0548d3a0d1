-- Purpose       metrics, newest first.
-- Precondition  none.
-- Lock order    none: reads the last committed state.

select minute, task, succeeded, failed, seconds, seconds_most, late, late_most
  from reltask_metrics
 where minute > :now - :since - 60000000
   and (:task is null or task = :task)
 order by minute desc, task;
