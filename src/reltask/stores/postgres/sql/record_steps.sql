-- Purpose       Record steps of durable functions, and consume the signals that they answer.
-- Precondition  Each job's row still has this id, owner and fence. A step that is done or failed
--               stays as it is; one that waits is replaced.
-- Lock order    Rows of jobs by ascending id; locked rows are skipped. A row missing from the
--               result is therefore suspect, not lost; read_holds.sql decides. Then steps and
--               signals, which only a session that is none of ours can have locked: waits :patience
--               for them, then fails (55P03).
-- Returns       One row per accepted claim: id, fence, and dead, which is always false. A recording
--               that is sent twice is accepted twice, and written once.
-- Parameters    One value per step in each array; a recording without steps has a null in :names.
--               :patience is a length for lock_timeout; null: the session's.
-- See           SQL.md: nullable now, materialized CTE, fence, lock order by id, skip locked,
--               primary-key lookup, generated column, lock timeout.
--
-- Record and fence are one statement: the row of the job is locked, and read again under the lock,
-- before anything is written. Every statement that writes the steps of a job holds that lock, so no
-- other one can come between. Steps that another statement of the same claim has committed after
-- this snapshot are found by `on conflict`, which does not look at the snapshot. A read of the
-- steps would miss them; so the number of new rows is taken from xmax, which is 0 in a row that was
-- inserted and not in one that was replaced.
--
-- A waiting step keeps the number of children that it waits for: fold_marks.sql may have subtracted
-- some before the same recording arrives again.
--
-- Progress sets attempt to 1, not to 0: the attempt that a suspension gives back is this run's.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now,
           set_config(
               'lock_timeout', coalesce(:patience::text, current_setting('lock_timeout')), true
           ) as lock_timeout
),

held as materialized (
    select job.fence, job.slot_no, given.*
    from (
        select one.*
        from unnest(
            :ids::uuid[], :fences::bigint[], :progress::boolean[], :names::text[], :kinds::text[],
            :states::text[], :values::text[], :errors::text[], :fingerprints::text[],
            :attempts::integer[], :started_ats::timestamptz[], :wake_ats::timestamptz[],
            :signals::text[], :signal_ids::text[], :pendings::integer[]
        ) as one (
            id, claimed, progress, name, kind, state, value, error, fingerprint, attempt,
            started_at, wake_at, signal, signal_id, pending
        )
        -- so that the timeout is set before the first row is locked
        cross join parameters
        order by id
    ) as given
    cross join lateral (
        select *
        from reltask.jobs
        where id = given.id and fence = given.claimed
          and locked_by is not distinct from :worker::text
        for update skip locked
    ) as job
),

written as (
    insert into reltask.steps as step (
        job_id, slot_no, name, kind, state, value, error, fingerprint, attempt, fence, started_at,
        recorded_at, wake_at, signal, pending
    )
    select held.id, held.slot_no, held.name, held.kind, held.state, held.value::json, held.error,
           held.fingerprint, held.attempt, held.fence, held.started_at, parameters.now,
           held.wake_at, held.signal, held.pending
    from held
    cross join parameters
    where held.name is not null
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
        pending = case when excluded.state = 'waiting' then step.pending else excluded.pending end
    where step.state = 'waiting'
    returning step.job_id, step.name, step.xmax = 0 as is_new
),

consumed as (
    update reltask.signals as signal
    set consumed_by = held.name
    from held
    where held.signal_id is not null
      and signal.job_id = any (array[held.id]) and signal.slot_no = held.slot_no
      and signal.name = held.signal and signal.id = held.signal_id
      and signal.consumed_by is null
      -- a step that was final already has consumed its own
      and exists (select from written where job_id = held.id and name = held.name)
),

changes as (
    select id, bool_or(progress) as progress, sum(added)::integer as added
    from (
        select id, progress, 0 as added
        from held
        union all
        select job_id, false, 1
        from written
        where is_new
    ) as part
    group by id
),

counted as (
    update reltask.jobs as job
    set steps = job.steps + changes.added,
        attempt = case when changes.progress then 1 else job.attempt end,
        losses = case when changes.progress then 0 else job.losses end,
        isolated = job.isolated and not changes.progress,
        -- unchanged, see SQL.md: generated column
        not_before = job.not_before
    from changes
    where job.id = any (array[changes.id])
)

select id, fence, false as dead
from held
group by id, fence;
