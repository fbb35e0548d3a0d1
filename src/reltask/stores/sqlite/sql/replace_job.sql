-- Purpose       Give the job that has a unique key other arguments, headers and another time.
-- Precondition  Unclaimed, not dead, and its run has never begun.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row with the id, if the job was changed.
-- See           SQL.md: one writer.

update reltask_jobs
set args = :args,
    headers = :headers,
    next_run_time = coalesce(:run_at, :now + coalesce(:delay, 0)),
    not_before = null
where id = (select job_id from reltask_keys where task = :task and key = :unique_key)
  and locked_by is null and dead_at is null and slot_started_at is null
  and schedule is null
returning id;
