-- Purpose       Write a run's progress.
-- Precondition  The job's row still has this id, owner and fence.
-- Lock order    One row.
-- Returns       One row with the id, if the claim still holds.
-- See           SQL.md: fence.

update reltask.jobs
set progress = :progress::text::json
where id = :id::uuid and fence = :fence::bigint and locked_by = :worker::text
returning id;
