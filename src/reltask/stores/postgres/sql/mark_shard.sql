-- Purpose       Number an install as a shard of a system.
-- Precondition  It has no number yet, or this one.
-- Lock order    One row.
-- Returns       One row with the number, if the install has it now.

update reltask.meta
set shard = :shard::smallint
where shard is null or shard = :shard::smallint
returning shard;
