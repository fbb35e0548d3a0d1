-- Purpose       Prevent a job from being claimed; a running claim goes on.
-- Precondition  Not paused, not dead, and no one-off that is being cancelled: it has to be claimed
--               to end; still the fence that was seen, if one is given.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row with the id, if the job was paused.
-- See           SQL.md: one writer.

update reltask_jobs
set paused_at = :now
where id = :job_id
  and paused_at is null
  and dead_at is null
  and (:fence is null or fence = :fence)
  and (schedule is not null or cancel_slot is not slot_no)
returning id;
