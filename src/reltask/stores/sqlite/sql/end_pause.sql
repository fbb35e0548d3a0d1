-- Purpose       Let workers claim the jobs of a paused queue or task again.
-- Precondition  It is paused.
-- Lock order    Needs the write lock.
-- Returns       One row with the name, if it was paused.
-- Parameters    :kind is 'queue' or 'task'.
-- See           SQL.md: one writer, paused lanes.

delete from reltask_pauses
where kind = :kind and name = :name
returning name;
