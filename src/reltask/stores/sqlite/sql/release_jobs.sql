-- Purpose       Release claims unfinished: the slot stays, and the attempt is given back. If it is
--               counted, it is not, and the job is dead at its last attempt. A cancelled job is
--               due at once, so that the next claim ends it.
-- Precondition  Each job's row still has this id, owner and fence. A row that does not match is not
--               written, and is missing from the result.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       Statement 2: one row per accepted release: id, fence, and whether it is dead.
-- See           SQL.md: one writer, fence, primary-key lookup, JSON batch, filtered index, mark.

with
batch as (
    select json_extract(value, '$.id') as id,
           json_extract(value, '$.fence') as fence,
           json_extract(value, '$.outcome') as outcome,
           json_extract(value, '$.error') as error
    from json_each(:releases)
)

insert into reltask_runs (
    job_id, fence, slot_no, task, key, queue, worker, attempt, nominal_time, due_at, claimed_at,
    finished_at, outcome, error
)
select jobs.id, jobs.fence, jobs.slot_no, jobs.task, jobs.key, jobs.queue, jobs.locked_by,
       jobs.attempt, jobs.next_run_time, jobs.due_at, jobs.locked_at, :now, batch.outcome,
       batch.error
from batch
join reltask_jobs as jobs on jobs.id = batch.id
where jobs.fence = batch.fence
  and +jobs.locked_by = :worker;

with
batch as (
    select json_extract(value, '$.id') as id,
           json_extract(value, '$.fence') as fence,
           json_extract(value, '$.delay') as delay,
           json_extract(value, '$.counted') as counted
    from json_each(:releases)
)

update reltask_jobs
set not_before = case when cancel_slot = slot_no then min(due_at, :now)
                      else coalesce(:now + batch.delay, not_before) end,
    attempt = case when batch.counted then attempt else max(attempt - 1, 0) end,
    dead_at = case when cancel_slot = slot_no then null
                   when batch.counted and attempt >= max_attempts then :now end,
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
returning id, fence, dead_at is not null as dead;

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
