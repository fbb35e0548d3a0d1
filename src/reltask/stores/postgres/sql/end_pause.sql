-- Purpose       Let workers claim the jobs of a paused queue or task again.
-- Precondition  It is paused.
-- Lock order    One row.
-- Returns       One row with the name, if it was paused.
-- Parameters    :kind is 'queue' or 'task'.
-- See           SQL.md: paused lanes.

delete from reltask.pauses
where kind = :kind::text and name = :name::text
returning name;
