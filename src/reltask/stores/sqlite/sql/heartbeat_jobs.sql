-- Purpose       Renew a worker's claims and its own row, and find claims whose answers were lost.
-- Precondition  The job's row still has this id, owner and fence, or this owner and one of the
--               tokens in :pending, whose claims wait for their answer. A row missing from the
--               result is suspect, not lost.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       Statements 1 and 2: one row per renewed claim, and whether its slot is cancelled.
--               Statement 4: one row per stray, a claim of this worker that has one of :tokens, so
--               that its answer was lost.
-- See           SQL.md: one writer, fence, primary-key lookup, JSON batch.

-- A claim of a job whose lock timeout is out of its range keeps its end: see claim_jobs.sql.
with
batch as (
    select json_extract(value, '$[0]') as id, json_extract(value, '$[1]') as fence
    from json_each(:holds)
)

update reltask_jobs
set heartbeat_at = :now,
    lock_expires_at = case when claim_timeout_ms > 3155760000000 then lock_expires_at
                           else :now + claim_timeout_ms * 1000 end
from batch
where reltask_jobs.id = batch.id
  and reltask_jobs.fence = batch.fence
  and +reltask_jobs.locked_by = :worker
returning id, fence, cancel_slot = slot_no as cancelled;

-- Claims that wait for their answer. As below: usually there are none, and no job is read.
update reltask_jobs
set heartbeat_at = :now,
    lock_expires_at = case when claim_timeout_ms > 3155760000000 then lock_expires_at
                           else :now + claim_timeout_ms * 1000 end
where id in (
    select job.id
    from json_each(:pending) as unanswered
    cross join reltask_jobs as job
    where job.locked_by = :worker
      and job.claim_token = unanswered.value
)
returning id, fence, cancel_slot = slot_no as cancelled;

update reltask_workers
set heartbeat_at = :now,
    alive_until = :now + :alive_for,
    dead_at = null
where id = :worker;

-- Strays. The tokens come first in the cross join: usually there are none, and no job is read.
select job.id, job.fence
from json_each(:tokens) as unanswered
cross join reltask_jobs as job
where job.locked_by = :worker
  and job.claim_token = unanswered.value;
