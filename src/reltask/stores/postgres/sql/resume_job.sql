-- Purpose       Let a paused job be claimed again.
-- Precondition  Paused, not dead; still the fence that was seen, if one is given.
-- Lock order    One row.
-- Returns       One row with the id, if the job was resumed.

update reltask.jobs
set paused_at = null
where id = :id::uuid and paused_at is not null and dead_at is null
  and (:fence::bigint is null or fence = :fence::bigint)
returning id;
