-- Purpose       End slots: write the ledger, tell the steps that wait for a child, remove one-offs,
--               move recurring jobs to their next slot.
-- Precondition  Each job's row still has this id, owner and fence. A row that does not match is not
--               written, and is missing from the result.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       Statement 1: one row per accepted completion, job_id and fence.
-- See           SQL.md: one writer, fence, primary-key lookup, JSON batch, mark.
--
-- The ledger is written first, because the rows that it describes may be deleted afterwards.

with
batch as (
    select json_extract(value, '$.id') as id,
           json_extract(value, '$.fence') as fence,
           json_extract(value, '$.outcome') as outcome,
           json_extract(value, '$.error') as error,
           json_extract(value, '$.result') as result,
           json_extract(value, '$.next_run_time') as next_run_time,
           json_extract(value, '$.keeps') as keeps
    from json_each(:completions)
)

insert into reltask_runs (
    job_id, fence, slot_no, task, key, queue, worker, attempt, nominal_time, due_at, claimed_at,
    finished_at, outcome, error, result, steps, ends_job, priority, args, headers
)
select jobs.id, jobs.fence, jobs.slot_no, jobs.task, jobs.key, jobs.queue, jobs.locked_by,
       jobs.attempt, jobs.next_run_time, jobs.due_at, jobs.locked_at, :now, batch.outcome,
       batch.error, batch.result, nullif(jobs.steps, 0), batch.next_run_time is null,
       case when batch.next_run_time is null then jobs.priority end,
       case when batch.keeps and batch.next_run_time is null then jobs.args end,
       case when batch.keeps and batch.next_run_time is null then jobs.headers end
from batch
join reltask_jobs as jobs on jobs.id = batch.id
where jobs.fence = batch.fence
  and +jobs.locked_by = :worker
returning job_id, fence;

-- Slots that were skipped between this one and the next: their numbers and fences follow the run's.
with
batch as (
    select json_extract(value, '$.id') as id,
           json_extract(value, '$.fence') as fence,
           json_extract(value, '$.skipped') as skipped
    from json_each(:completions)
)

insert into reltask_runs (
    job_id, fence, slot_no, task, key, queue, worker, attempt, nominal_time, due_at, claimed_at,
    finished_at, outcome
)
select jobs.id, jobs.fence + passed.key + 1, jobs.slot_no + passed.key + 1, jobs.task, jobs.key,
       jobs.queue, null, 0, passed.value, passed.value, null, :now, 'skipped'
from batch
join reltask_jobs as jobs on jobs.id = batch.id
join json_each(batch.skipped) as passed
where jobs.fence = batch.fence
  and +jobs.locked_by = :worker;

-- A child that ends leaves its end for the step that waits for it, and a mark: only the first time,
-- and only while a step may wait. The mark comes first, because the end says that there is one.
with
batch as (
    select json_extract(value, '$.id') as id, json_extract(value, '$.fence') as fence
    from json_each(:completions)
    where json_extract(value, '$.has_parent')
      and json_extract(value, '$.next_run_time') is null
)

insert into reltask_marks (at, kind, job_id, slot_no, name)
select :now, 'child', jobs.parent_id, jobs.parent_slot, jobs.parent_step
from batch
join reltask_jobs as jobs on jobs.id = batch.id
join reltask_jobs as parent on parent.id = jobs.parent_id and parent.slot_no = jobs.parent_slot
where jobs.fence = batch.fence
  and +jobs.locked_by = :worker
  and not exists (
      select 1
      from reltask_child_ends
      where parent_id = jobs.parent_id and slot_no = jobs.parent_slot
        and step = jobs.parent_step and nth = jobs.parent_nth
  );

with
batch as (
    select json_extract(value, '$.id') as id, json_extract(value, '$.fence') as fence
    from json_each(:completions)
    where json_extract(value, '$.has_parent')
      and json_extract(value, '$.next_run_time') is null
)

insert into reltask_child_ends (
    parent_id, slot_no, step, nth, job_id, outcome, value, error, ended_at
)
select jobs.parent_id, jobs.parent_slot, jobs.parent_step, jobs.parent_nth, jobs.id, runs.outcome,
       runs.result, runs.error, :now
from batch
join reltask_jobs as jobs on jobs.id = batch.id
join reltask_jobs as parent on parent.id = jobs.parent_id and parent.slot_no = jobs.parent_slot
join reltask_runs as runs on runs.job_id = jobs.id and runs.fence = jobs.fence
where jobs.fence = batch.fence
  and +jobs.locked_by = :worker
on conflict do nothing;

-- One-offs are deleted before the next statement, because that one changes fences.
with
batch as (
    select json_extract(value, '$.id') as id, json_extract(value, '$.fence') as fence
    from json_each(:completions)
    where json_extract(value, '$.next_run_time') is null
)

delete from reltask_jobs
where (id, fence) in (select id, fence from batch)
  and +locked_by = :worker;

-- Recurring jobs get their next slot, strictly later than the last, whatever the clocks did.
with
batch as (
    select json_extract(value, '$.id') as id,
           json_extract(value, '$.fence') as fence,
           json_extract(value, '$.next_run_time') as next_run_time,
           json_extract(value, '$.args') as args,
           json_array_length(value, '$.skipped') as passed
    from json_each(:completions)
    where json_extract(value, '$.next_run_time') is not null
)

update reltask_jobs
set args = coalesce(batch.args, reltask_jobs.args),
    slot_no = slot_no + 1 + batch.passed,
    fence = reltask_jobs.fence + batch.passed,
    next_run_time = max(batch.next_run_time, reltask_jobs.next_run_time + 1),
    not_before = null,
    slot_started_at = null,
    last_run_time = :now,
    attempt = 0,
    losses = 0,
    isolated = 0,
    suspended = 0,
    steps = 0,
    -- a cancelled one-off that goes on with Again is still cancelled; a schedule goes on
    cancel_slot = case when schedule is null and cancel_slot = slot_no
                       then slot_no + 1 + batch.passed end,
    locked_by = null,
    locked_at = null,
    heartbeat_at = null,
    claim_timeout_ms = null,
    lock_expires_at = null,
    claim_token = null,
    progress = null
from batch
where reltask_jobs.id = batch.id
  and reltask_jobs.fence = batch.fence
  and +reltask_jobs.locked_by = :worker;
