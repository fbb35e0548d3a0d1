-- Purpose       keep a job from being claimed; a claim under way goes on.
-- Precondition  not paused, not dead.
-- Lock order    one row.

update reltask.jobs
set paused_at = coalesce(:now::timestamptz, statement_timestamp())
where id = :id::uuid and paused_at is null and dead_at is null
returning id;
