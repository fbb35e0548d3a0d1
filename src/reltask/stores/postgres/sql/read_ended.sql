-- Purpose       which of these jobs the ledger knows: a look after a COPY, and a second one after an enqueue that was
--               sent again.
-- Precondition  in the transaction of that enqueue, with the ids that it has inserted. None may be known: a job that the
--               first sending brought, and that was claimed and done before the second one's insert but after its
--               snapshot, would come back to life. Then the transaction must be rolled back, and the next try sees it.
-- Lock order    no locks; a new snapshot.
--
-- The limit leaves the planner one way to find each row, whatever the statistics say.

select given.id
from unnest(:ids::uuid[]) as given (id)
cross join lateral (select from reltask.runs as run where run.job_id = given.id limit 1) as known;
