-- Purpose       Read which shard of a system this install is, and whether it is being drained.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row: shard, null for a whole install; draining.

select shard, draining from reltask.meta;
