-- Purpose       Read what the ledger says about these runs, after an answer was lost.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per run in the ledger: job_id, fence, outcome.
-- See           SQL.md: lost answer, JSON batch.

select runs.job_id, runs.fence, runs.outcome
from json_each(:holds) as held
join reltask_runs as runs
    on runs.job_id = json_extract(held.value, '$[0]')
    and runs.fence = json_extract(held.value, '$[1]');
