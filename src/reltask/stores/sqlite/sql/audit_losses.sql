-- Purpose       runs that lost their lock, by task, outcome and worker, with the reason of the last one.
-- Precondition  none; looks at every ledger row.
-- Lock order    none: reads the last committed state.
-- Parameters    :task null for all tasks; :limit.
--
-- lost        the lock ended and somebody else took the claim away
-- abandoned   the worker itself found that it had lost the lock, or was about to, and gave up
-- returned    of these, the runs whose worker was seen alive afterwards: it was paused or cut off, not dead. What it
--             still wrote for them was refused. A refused write leaves no row, so nobody can count those.
--
-- Beside max() SQLite takes the other columns, here the error, from the row that has the maximum.

select runs.task,
       runs.outcome,
       runs.worker,
       count(*)                                                            as runs,
       count(*) filter (where workers.heartbeat_at > runs.finished_at)     as returned,
       max(runs.finished_at)                                               as last_at,
       runs.error                                                          as reason
  from reltask_runs as runs
  left join reltask_workers as workers on workers.id = runs.worker
 where runs.outcome in ('lost', 'abandoned')
   and (:task is null or runs.task = :task)
 group by runs.task, runs.outcome, runs.worker
 order by last_at desc, runs.task, runs.worker, runs.outcome
 limit :limit;
