-- Purpose       Record steps of running jobs, and consume the signals that they name.
-- Precondition  Each job's row still has this id, owner and fence; for others nothing is written.
--               A step that is done or failed already stays, so that a recording may be sent twice.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       Statement 4: one row per claim whose steps were accepted: id, fence.
-- Parameters    :recordings has one object per recording; its progress says whether the slot's
--               attempts are counted anew.
-- See           SQL.md: one writer, fence, primary-key lookup, JSON batch.

-- Signals first: a step that is final already has consumed its own.
with
batch as (
    select json_extract(recording.value, '$.id') as id,
           json_extract(recording.value, '$.fence') as fence,
           json_extract(step.value, '$.name') as name,
           json_extract(step.value, '$.signal') as signal,
           json_extract(step.value, '$.signal_id') as signal_id
    from json_each(:recordings) as recording
    join json_each(recording.value, '$.steps') as step
    where json_extract(step.value, '$.signal_id') is not null
)

update reltask_signals
set consumed_by = batch.name
from batch
join reltask_jobs as jobs on jobs.id = batch.id
where jobs.fence = batch.fence
  and +jobs.locked_by = :worker
  and reltask_signals.job_id = jobs.id
  and reltask_signals.slot_no = jobs.slot_no
  and reltask_signals.name = batch.signal
  and reltask_signals.id = batch.signal_id
  and reltask_signals.consumed_by is null
  and not exists (
      select 1
      from reltask_steps as steps
      where steps.job_id = jobs.id and steps.slot_no = jobs.slot_no and steps.name = batch.name
        and steps.state <> 'waiting'
  );

-- How many of the steps are new is counted before they are inserted.
with
batch as (
    select json_extract(value, '$.id') as id,
           json_extract(value, '$.fence') as fence,
           max(json_extract(value, '$.progress')) as progress
    from json_each(:recordings)
    group by 1, 2
),

fresh as (
    select jobs.id, count(distinct json_extract(step.value, '$.name')) as steps
    from json_each(:recordings) as recording
    join json_each(recording.value, '$.steps') as step
    join reltask_jobs as jobs on jobs.id = json_extract(recording.value, '$.id')
    left join reltask_steps as known
        on known.job_id = jobs.id
        and known.slot_no = jobs.slot_no
        and known.name = json_extract(step.value, '$.name')
    where jobs.fence = json_extract(recording.value, '$.fence')
      and known.name is null
    group by jobs.id
)

update reltask_jobs
set steps = reltask_jobs.steps + coalesce(fresh.steps, 0),
    attempt = case when batch.progress then 1 else attempt end,
    losses = case when batch.progress then 0 else losses end,
    isolated = case when batch.progress then 0 else isolated end
from batch
left join fresh on fresh.id = batch.id
where reltask_jobs.id = batch.id
  and reltask_jobs.fence = batch.fence
  and +reltask_jobs.locked_by = :worker;

-- A waiting step that is written again keeps its start. It also keeps the number of children that
-- it waits for: some may have ended since the recording was sent for the first time.
with
batch as (
    select json_extract(recording.value, '$.id') as id,
           json_extract(recording.value, '$.fence') as fence,
           json_extract(step.value, '$.name') as name,
           json_extract(step.value, '$.kind') as kind,
           json_extract(step.value, '$.state') as state,
           json_extract(step.value, '$.value') as value,
           json_extract(step.value, '$.error') as error,
           json_extract(step.value, '$.fingerprint') as fingerprint,
           json_extract(step.value, '$.attempt') as attempt,
           json_extract(step.value, '$.started_at') as started_at,
           json_extract(step.value, '$.wake_at') as wake_at,
           json_extract(step.value, '$.signal') as signal,
           json_extract(step.value, '$.pending') as pending
    from json_each(:recordings) as recording
    join json_each(recording.value, '$.steps') as step
)

insert into reltask_steps as recorded (
    job_id, slot_no, name, kind, state, value, error, fingerprint, attempt, fence, started_at,
    recorded_at, wake_at, signal, pending
)
select jobs.id, jobs.slot_no, batch.name, batch.kind, batch.state, batch.value, batch.error,
       batch.fingerprint, batch.attempt, jobs.fence, batch.started_at, :now, batch.wake_at,
       batch.signal, batch.pending
from batch
join reltask_jobs as jobs on jobs.id = batch.id
where jobs.fence = batch.fence
  and +jobs.locked_by = :worker
on conflict (job_id, slot_no, name) do update
set kind = excluded.kind,
    state = excluded.state,
    value = excluded.value,
    error = excluded.error,
    fingerprint = excluded.fingerprint,
    attempt = excluded.attempt,
    fence = excluded.fence,
    recorded_at = excluded.recorded_at,
    wake_at = excluded.wake_at,
    signal = excluded.signal,
    pending = case when excluded.state = 'waiting' then recorded.pending
                   else excluded.pending end
where recorded.state = 'waiting';

select distinct jobs.id, jobs.fence
from json_each(:recordings) as recording
join reltask_jobs as jobs on jobs.id = json_extract(recording.value, '$.id')
where jobs.fence = json_extract(recording.value, '$.fence')
  and +jobs.locked_by = :worker;
