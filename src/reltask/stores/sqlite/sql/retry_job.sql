-- Purpose       Give a dead job a new set of attempts, due at once.
-- Precondition  Dead; still the fence that was seen, if one is given.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row with the id, if the job was dead.
-- See           SQL.md: one writer.

update reltask_jobs
set dead_at = null,
    attempt = 0,
    losses = 0,
    isolated = 0,
    not_before = :now
where id = :job_id
  and dead_at is not null
  and (:fence is null or fence = :fence)
returning id;
