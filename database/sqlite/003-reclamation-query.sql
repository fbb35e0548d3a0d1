-- Which claims have expired, and what every worker does about them. For people: workers run
-- stores/sqlite/sql/reclaim_jobs.sql themselves, and need no help.
--
-- A claim has expired when no heartbeat has arrived for the lock timeout that was copied at the
-- claim:
--
--     locked_by is not null          a worker holds the job
--     lock_expires_at < now          heartbeat_at + claim_timeout_ms has passed
--
-- This is safe beside a live owner, because of the fence in the second WHERE: a row that was
-- completed and claimed again meanwhile has a higher one. A renewed row has a later
-- lock_expires_at.

-- 1. The claims that have expired.
select id,
       task,
       locked_by,
       fence,
       attempt,
       datetime(heartbeat_at / 1e6, 'unixepoch') as heartbeat_at,
       datetime(lock_expires_at / 1e6, 'unixepoch') as lock_expires_at
from reltask_jobs
where locked_by is not null
  and lock_expires_at < cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000
order by lock_expires_at;

-- 2. Reclaim all of them by hand. The ledger rows come first: the update finds the lost runs by
--    them.
begin immediate;

insert into reltask_runs (
    job_id, fence, slot_no, task, key, queue, worker, attempt, nominal_time, due_at, claimed_at,
    finished_at, outcome, error
)
select id, fence, slot_no, task, key, queue, locked_by, attempt, next_run_time, due_at, locked_at,
       cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000, 'lost',
       'reclaimed by hand'
from reltask_jobs
where locked_by is not null
  and lock_expires_at < cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000;

update reltask_jobs
set dead_at = case when attempt >= max_attempts
                   then cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000
              end,
    losses = losses + 1,
    isolated = losses > 0,
    locked_by = null,
    locked_at = null,
    heartbeat_at = null,
    claim_timeout_ms = null,
    lock_expires_at = null,
    claim_token = null
where locked_by is not null
  and exists (
      select 1
      from reltask_runs as runs
      where runs.job_id = reltask_jobs.id and runs.fence = reltask_jobs.fence
  );

-- A child of a durable function that is dead now: the step that waits for it learns of it.
insert into reltask_marks (at, kind, job_id, slot_no, name)
select dead_at, 'child', parent_id, parent_slot, parent_step
from reltask_jobs
where dead_at is not null and parent_id is not null;

insert into reltask_child_ends (
    parent_id, slot_no, step, nth, job_id, outcome, error, ended_at
)
select parent_id, parent_slot, parent_step, parent_nth, id, 'failed', 'reclaimed by hand', dead_at
from reltask_jobs
where dead_at is not null and parent_id is not null
on conflict do nothing;

update reltask_jobs
set parent_id = null,
    parent_slot = null,
    parent_step = null,
    parent_nth = null
where dead_at is not null and parent_id is not null;

commit;
