-- Purpose       what the ledger says about these runs: how a lost answer is settled.
-- Precondition  none.
-- Lock order    none: reads the last committed state.

select runs.job_id, runs.fence, runs.outcome
  from json_each(:holds) as held
  join reltask_runs as runs
    on runs.job_id = json_extract(held.value, '$[0]')
   and runs.fence = json_extract(held.value, '$[1]');
