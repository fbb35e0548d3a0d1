-- Purpose       Make a job due at once; its nominal time stays, and a due job keeps its place.
-- Precondition  Unclaimed, not dead; still the fence that was seen, if one is given.
-- Lock order    One row.
-- Returns       One row with the id, if the job was unclaimed and not dead.
-- See           SQL.md: nullable now.

update reltask.jobs
set not_before = least(due_at, coalesce(:now::timestamptz, statement_timestamp()))
where id = :id::uuid and locked_by is null and dead_at is null
  and (:fence::bigint is null or fence = :fence::bigint)
returning id;
