-- Purpose       let a paused job be claimed again.
-- Precondition  paused.
-- Lock order    one row.

update reltask.jobs
set paused_at = null
where id = :id::uuid and paused_at is not null and dead_at is null
returning id;
