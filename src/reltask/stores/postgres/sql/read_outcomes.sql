-- Purpose       what the ledger says about these runs: how a lost answer is settled.
-- Precondition  none; reads only.
-- Lock order    no locks.
--
-- "Any of this one" is "equal" to people; the planner can only look each id up, whatever the statistics say.

select run.job_id, run.fence, run.outcome
from unnest(:ids::uuid[], :fences::bigint[]) as given (id, fence)
join reltask.runs as run on run.job_id = any (array[given.id]) and run.fence = given.fence;
