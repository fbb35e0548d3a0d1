-- Purpose       make a job due at once; its nominal time stays, and a job that is already due keeps its place.
-- Precondition  unclaimed, not dead.
-- Lock order    one row.

update reltask.jobs
set not_before = least(due_at, coalesce(:now::timestamptz, statement_timestamp()))
where id = :id::uuid and locked_by is null and dead_at is null
returning id;
