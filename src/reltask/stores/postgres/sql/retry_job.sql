-- Purpose       give a dead job a new set of attempts, due at once.
-- Precondition  dead.
-- Lock order    one row.

update reltask.jobs
set attempt = 0,
    dead_at = null,
    isolated = false,
    not_before = coalesce(:now::timestamptz, statement_timestamp())
where id = :id::uuid and dead_at is not null
returning id;
