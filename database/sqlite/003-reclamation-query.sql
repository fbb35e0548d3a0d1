-- Which claims have expired, and what every reltask worker does about them. For a person's eyes: workers run
-- stores/sqlite/sql/reclaim_jobs.sql by themselves, and need no help.
--
-- A claim is stale when no heartbeat has arrived for as long as the lock timeout that was copied into the claim:
--
--     locked_by is not null          somebody holds it
--     lock_expires_at < now          heartbeat_at + claim_timeout_ms has passed
--
-- The fence in the second WHERE is what makes this safe beside a living owner: a row that was completed and claimed
-- again in the meantime has a higher one. A row that was renewed has a later lock_expires_at.

-- 1. What is stale now.
select id,
       task,
       locked_by,
       fence,
       attempt,
       datetime(heartbeat_at / 1e6, 'unixepoch')    as heartbeat_at,
       datetime(lock_expires_at / 1e6, 'unixepoch') as lock_expires_at
  from reltask_jobs
 where locked_by is not null
   and lock_expires_at < cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000
 order by lock_expires_at;

-- 2. Taking all of them away by hand. The ledger row comes first: it is how the lost run is known afterwards.
begin immediate;

insert into reltask_runs (
    job_id, fence, slot_no, task, key, queue, worker, attempt, nominal_time, due_at, claimed_at, finished_at,
    outcome, error
)
select id, fence, slot_no, task, key, queue, locked_by, attempt, next_run_time, due_at, locked_at,
       cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000, 'lost', 'reclaimed by hand'
  from reltask_jobs
 where locked_by is not null
   and lock_expires_at < cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000;

update reltask_jobs
   set dead_at          = case when attempt >= max_attempts
                               then cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000 end,
       losses           = losses + 1,
       isolated         = losses > 0,
       locked_by        = null,
       locked_at        = null,
       heartbeat_at     = null,
       claim_timeout_ms = null,
       lock_expires_at  = null,
       claim_token      = null,
       progress         = null
 where locked_by is not null
   and exists (select 1 from reltask_runs as runs where runs.job_id = reltask_jobs.id and runs.fence = reltask_jobs.fence);

commit;
