-- Purpose       Prevent a job from being claimed; a running claim goes on.
-- Precondition  Not paused, not dead.
-- Lock order    One row.
-- Returns       One row with the id, if the job was paused.
-- See           SQL.md: nullable now.

update reltask.jobs
set paused_at = coalesce(:now::timestamptz, statement_timestamp())
where id = :id::uuid and paused_at is null and dead_at is null
returning id;
