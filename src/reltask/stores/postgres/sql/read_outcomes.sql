-- Purpose       what the ledger says about these runs: how a lost answer is settled.
-- Precondition  none; reads only.
-- Lock order    no locks.
--
-- "Not less and not greater" leaves the planner one way to find each row, whatever the statistics say.

select run.job_id, run.fence, run.outcome
from unnest(:ids::uuid[], :fences::bigint[]) as given (id, fence)
join reltask.runs as run on run.job_id >= given.id and run.job_id <= given.id and run.fence = given.fence;
