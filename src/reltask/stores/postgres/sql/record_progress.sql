-- Purpose       write how far a run has come, for people to see.
-- Precondition  id, owner and fence still match.
-- Lock order    one row.

update reltask.jobs
set progress = :progress::text::json
where id = :id::uuid and fence = :fence::bigint and locked_by = :worker::text
returning id;
