-- Purpose       Record what became of an operator's action.
-- Precondition  It is recorded, and has no outcome yet.
-- Lock order    The write lock.
-- Returns       One row with the id, if the outcome was written.
-- See           SQL.md: one writer.

update reltask_actions
set outcome = :outcome,
    changed = :changed
where id = :id and outcome is null
returning id;
