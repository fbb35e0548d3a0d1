-- Purpose       Read what the ledger says about these runs, after an answer was lost.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per run in the ledger: job_id, fence, outcome.
-- See           SQL.md: primary-key lookup, lost answer.

select run.job_id, run.fence, run.outcome
from unnest(:ids::uuid[], :fences::bigint[]) as given (id, fence)
join reltask.runs as run on run.job_id = any (array[given.id]) and run.fence = given.fence;
