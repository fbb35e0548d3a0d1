-- Purpose       Take expired claims away: the slot is claimed again, alone, or the job is dead. A
--               cancelled job is not dead: the next claim ends it.
-- Precondition  In both writes: the fence and the heartbeat that were seen expired, and still
--               expired.
-- Lock order    The first statement only reads. The others need the write lock.
-- Returns       Statement 1: expired claims. Statement 2: one row per new ledger row. Statement 3:
--               one row per freed job, and whether it is dead.
-- See           SQL.md: one writer, JSON batch, filtered index, mark.

-- The claims whose lock has expired.
select id, fence, heartbeat_at
from reltask_jobs
where locked_by is not null
  and lock_expires_at < :now
order by lock_expires_at
limit :limit;

-- A run that is in the ledger already must not prevent the others from being freed.
with
batch as (
    select json_extract(value, '$[0]') as id,
           json_extract(value, '$[1]') as fence,
           json_extract(value, '$[2]') as heartbeat_at
    from json_each(:stale)
)

insert into reltask_runs (
    job_id, fence, slot_no, task, key, queue, worker, attempt, nominal_time, due_at, claimed_at,
    finished_at, outcome, error
)
select jobs.id, jobs.fence, jobs.slot_no, jobs.task, jobs.key, jobs.queue, jobs.locked_by,
       jobs.attempt, jobs.next_run_time, jobs.due_at, jobs.locked_at, :now, 'lost',
       'no heartbeat since '
           || strftime('%Y-%m-%d %H:%M:%f', jobs.heartbeat_at / 1e6, 'unixepoch') || ' UTC'
from batch
join reltask_jobs as jobs on jobs.id = batch.id
where jobs.fence = batch.fence
  and jobs.heartbeat_at = batch.heartbeat_at
  and jobs.lock_expires_at < :now
on conflict do nothing
returning job_id as id, fence, task, slot_no, worker;

with
batch as (
    select json_extract(value, '$[0]') as id,
           json_extract(value, '$[1]') as fence,
           json_extract(value, '$[2]') as heartbeat_at
    from json_each(:stale)
)

update reltask_jobs
set dead_at = case when cancel_slot = slot_no then null
                   when attempt >= max_attempts then :now end,
    losses = losses + 1,
    isolated = losses > 0,
    locked_by = null,
    locked_at = null,
    heartbeat_at = null,
    claim_timeout_ms = null,
    lock_expires_at = null,
    claim_token = null
from batch
where reltask_jobs.id = batch.id
  and reltask_jobs.fence = batch.fence
  and reltask_jobs.heartbeat_at = batch.heartbeat_at
  and reltask_jobs.lock_expires_at < :now
returning id, dead_at is not null as dead;

-- A dead job that has a parent died just now. It leaves its end for the step that waits for it, and
-- a mark, which comes first because the end says that there is one. Then it has no parent any
-- more, so that it counts once whatever is retried later.
insert into reltask_marks (at, kind, job_id, slot_no, name)
select :now, 'child', jobs.parent_id, jobs.parent_slot, jobs.parent_step
from reltask_jobs as jobs
join reltask_jobs as parent on parent.id = jobs.parent_id and parent.slot_no = jobs.parent_slot
where jobs.dead_at is not null and jobs.parent_id is not null
  and not exists (
      select 1
      from reltask_child_ends
      where parent_id = jobs.parent_id and slot_no = jobs.parent_slot
        and step = jobs.parent_step and nth = jobs.parent_nth
  );

insert into reltask_child_ends (
    parent_id, slot_no, step, nth, job_id, outcome, error, ended_at
)
select jobs.parent_id, jobs.parent_slot, jobs.parent_step, jobs.parent_nth, jobs.id, 'failed',
       runs.error, :now
from reltask_jobs as jobs
join reltask_jobs as parent on parent.id = jobs.parent_id and parent.slot_no = jobs.parent_slot
join reltask_runs as runs on runs.job_id = jobs.id and runs.fence = jobs.fence
where jobs.dead_at is not null and jobs.parent_id is not null
on conflict do nothing;

update reltask_jobs
set parent_id = null,
    parent_slot = null,
    parent_step = null,
    parent_nth = null
where dead_at is not null and parent_id is not null;
