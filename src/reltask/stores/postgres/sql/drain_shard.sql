-- Purpose       Let a shard get no new jobs, or let it get some again.
-- Precondition  Whatever it was before.
-- Lock order    One row.
-- Returns       One row: draining.

update reltask.meta
set draining = :draining::boolean
returning draining;
