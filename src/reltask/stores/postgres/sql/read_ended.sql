-- Purpose       Find which of these jobs are in the ledger, after a COPY or a repeated enqueue.
-- Precondition  In the transaction of that enqueue, with the ids that it has inserted. None may be
--               in the ledger: a job of the first sending that was claimed and completed after the
--               snapshot of the second one, and before its insert, would come back to life. If one
--               is, the transaction must be rolled back; the next try sees the ledger row.
-- Lock order    Locks nothing; reads a new snapshot.
-- Returns       One row per job in the ledger: its id.
-- See           SQL.md: primary-key lookup, lost answer.

select given.id
from unnest(:ids::uuid[]) as given (id)
cross join lateral (select from reltask.runs as run where run.job_id = given.id limit 1) as known;
