-- Purpose       Number an install as a shard of a system.
-- Precondition  It has no number yet, or this one.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row with the number, if the install has it now.
-- See           SQL.md: one writer.

update reltask_meta
set shard = :shard
where shard is null or shard = :shard
returning shard;
