-- Purpose       Let a shard get no new jobs, or let it get some again.
-- Precondition  Whatever it was before.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row: draining.
-- See           SQL.md: one writer.

update reltask_meta
set draining = :draining
returning draining;
