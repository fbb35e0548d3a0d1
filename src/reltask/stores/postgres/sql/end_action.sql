-- Purpose       Record what became of an operator's action.
-- Precondition  It is recorded, and has no outcome yet.
-- Lock order    One row.
-- Returns       One row with the id, if the outcome was written.

update reltask.actions
set outcome = :outcome::text,
    changed = :changed::integer
where id = :id::uuid and outcome is null
returning id;
