-- Purpose       End runs that wait: the slot and its steps stay, the attempt is given back, and the
--               job is due at its wake time.
-- Precondition  Each job's row still has this id, owner and fence. A row that does not match is not
--               written, and is missing from the result.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       Statement 2: one row per accepted suspension: id, fence, and that it is not dead.
-- Parameters    :suspensions has the wake_seq that each run has seen, and its wake time; null: only
--               a mark wakes the job.
-- See           SQL.md: one writer, fence, primary-key lookup, JSON batch, mark.

with
batch as (
    select json_extract(value, '$.id') as id, json_extract(value, '$.fence') as fence
    from json_each(:suspensions)
)

insert into reltask_runs (
    job_id, fence, slot_no, task, key, queue, worker, attempt, nominal_time, due_at, claimed_at,
    finished_at, outcome
)
select jobs.id, jobs.fence, jobs.slot_no, jobs.task, jobs.key, jobs.queue, jobs.locked_by,
       jobs.attempt, jobs.next_run_time, jobs.due_at, jobs.locked_at, :now, 'suspended'
from batch
join reltask_jobs as jobs on jobs.id = batch.id
where jobs.fence = batch.fence
  and +jobs.locked_by = :worker;

-- A mark that was folded since the run looked makes it due at once, and so does a cancel. Without a
-- wake time it is due at the end of 8999. The progress stays for the next run.
with
batch as (
    select json_extract(value, '$.id') as id,
           json_extract(value, '$.fence') as fence,
           json_extract(value, '$.seen') as seen,
           json_extract(value, '$.wake_at') as wake_at
    from json_each(:suspensions)
)

update reltask_jobs
set suspended = 1,
    not_before = case when wake_seq <> batch.seen or cancel_slot = slot_no then :now
                      else coalesce(batch.wake_at, 221845305600000000) end,
    attempt = max(attempt - 1, 0),
    losses = 0,
    isolated = 0,
    locked_by = null,
    locked_at = null,
    heartbeat_at = null,
    claim_timeout_ms = null,
    lock_expires_at = null,
    claim_token = null
from batch
where reltask_jobs.id = batch.id
  and reltask_jobs.fence = batch.fence
  and +reltask_jobs.locked_by = :worker
returning id, fence, 0 as dead;
