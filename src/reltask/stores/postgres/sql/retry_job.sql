-- Purpose       Give a dead job a new set of attempts, due at once.
-- Precondition  Dead; still the fence that was seen, if one is given.
-- Lock order    One row.
-- Returns       One row with the id, if the job was dead.
-- See           SQL.md: nullable now.

update reltask.jobs
set attempt = 0,
    dead_at = null,
    losses = 0,
    isolated = false,
    not_before = coalesce(:now::timestamptz, statement_timestamp())
where id = :id::uuid and dead_at is not null
  and (:fence::bigint is null or fence = :fence::bigint)
returning id;
