-- Purpose       runs that lost their lock, by task, outcome and worker, with the reason of the last one.
-- Precondition  none; reads only, and looks at every ledger row.
-- Lock order    no locks.
-- Parameters    :task null for all tasks; :limit.
--
-- lost        the lock ended and somebody else took the claim away
-- abandoned   the worker itself found that it had lost the lock, or was about to, and gave up
-- returned    of these, the runs whose worker was seen alive afterwards: it was paused or cut off, not dead. What it
--             still wrote for them was refused. A refused write leaves no row, so nobody can count those.

select run.task,
       run.outcome,
       run.worker,
       count(*) as runs,
       count(*) filter (where worker.heartbeat_at > run.finished_at) as returned,
       max(run.finished_at) as last_at,
       (array_agg(run.error order by run.finished_at desc, run.fence desc))[1] as reason
from reltask.runs as run
left join reltask.workers as worker on worker.id = run.worker
where run.outcome in ('lost', 'abandoned')
  and (:task::text is null or run.task = :task::text)
group by run.task, run.outcome, run.worker
order by last_at desc, run.task, run.worker, run.outcome
limit :limit::integer;
