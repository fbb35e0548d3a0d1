-- Purpose       Prevent a job from being claimed; a running claim goes on.
-- Precondition  Not paused, not dead, and no one-off that is being cancelled: it has to be claimed
--               to end; still the fence that was seen, if one is given.
-- Lock order    One row.
-- Returns       One row with the id, if the job was paused.
-- See           SQL.md: nullable now.

update reltask.jobs
set paused_at = coalesce(:now::timestamptz, statement_timestamp())
where id = :id::uuid and paused_at is null and dead_at is null
  and (:fence::bigint is null or fence = :fence::bigint)
  and (schedule is not null or cancel_slot is distinct from slot_no)
returning id;
