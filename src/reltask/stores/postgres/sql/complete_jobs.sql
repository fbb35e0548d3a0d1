-- Purpose       End slots: write the ledger, remove one-offs, move recurring jobs to their next
--               slot.
-- Precondition  Each job's row still has this id, owner and fence. A row that does not match is not
--               written, and is missing from the result.
-- Lock order    Rows by ascending id; locked rows are skipped, so a settlement never waits. A row
--               missing from the result is therefore suspect, not lost; read_holds.sql decides.
-- Returns       One row per accepted completion: id, fence, and dead, which is always false.
-- See           SQL.md: nullable now, materialized CTE, fence, lock order by id, skip locked,
--               primary-key lookup.
--
-- A skipped slot also gets a ledger row, with the next slot number and the next fence; the job's
-- row advances by the same number. The unique index runs_slot_ends_once refuses a second end of any
-- slot.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

held as materialized (
    select job.id, job.fence, job.slot_no, job.task, job.key, job.queue, job.attempt,
           job.next_run_time, job.due_at, job.locked_at, job.steps, job.parent_id,
           job.parent_slot, job.parent_step, job.parent_nth, given.outcome, given.result,
           given.error, given.next_time, given.args, coalesce(given.skipped, 0) as skipped,
           job.priority, case when given.drops is null then job.args end as kept_args,
           case when given.drops is null then job.headers end as kept_headers
    from (
        select *
        from unnest(
            :ids::uuid[], :fences::bigint[], :outcomes::text[], :results::text[], :errors::text[],
            :next_times::timestamptz[], :args::text[], :skipped_counts::integer[],
            :drops::boolean[]
        ) as one (id, fence, outcome, result, error, next_time, args, skipped, drops)
        order by id
    ) as given
    cross join lateral (
        select *
        from reltask.jobs
        where id = given.id and fence = given.fence and locked_by is not distinct from :worker::text
        for update skip locked
    ) as job
),

ledger as (
    insert into reltask.runs (
        job_id, fence, slot_no, task, key, queue, worker, attempt,
        nominal_time, due_at, claimed_at, finished_at, outcome, error, result, steps,
        ends_job, priority, args, headers
    )
    select held.id, held.fence, held.slot_no, held.task, held.key, held.queue, :worker::text,
           held.attempt, held.next_run_time, held.due_at, held.locked_at, parameters.now,
           coalesce(held.outcome, 'succeeded'), held.error, held.result::json,
           nullif(held.steps, 0), held.next_time is null,
           case when held.next_time is null then held.priority end,
           case when held.next_time is null then held.kept_args end,
           case when held.next_time is null then held.kept_headers end
    from held
    cross join parameters
    union all
    select held.id, held.fence + passed.nth, held.slot_no + passed.nth, held.task, held.key,
           held.queue, null, 0, passed.nominal_time, passed.nominal_time, null, parameters.now,
           'skipped', null, null, null, false, null, null, null
    from unnest(
        :skipped_ids::uuid[], :skipped_nths::integer[], :skipped_times::timestamptz[]
    ) as passed (id, nth, nominal_time)
    join held on held.id = passed.id
    cross join parameters
),

-- A child that has ended: its parent's step counts it once, by the primary key. The parent's row is
-- not touched.
ended as (
    insert into reltask.child_ends (
        parent_id, slot_no, step, nth, job_id, outcome, value, error, ended_at
    )
    select held.parent_id, held.parent_slot, held.parent_step, held.parent_nth, held.id,
           case when held.outcome = 'skipped' then 'cancelled'
                else coalesce(held.outcome, 'succeeded') end,
           held.result::json, held.error, parameters.now
    from held
    cross join parameters
    where held.next_time is null and held.parent_id is not null
    order by held.parent_id, held.parent_slot, held.parent_step, held.parent_nth
    on conflict do nothing
    returning parent_id, slot_no, step
),

marked as (
    insert into reltask.marks (at, kind, job_id, slot_no, name)
    select parameters.now, 'child', ended.parent_id, ended.slot_no, ended.step
    from ended
    cross join parameters
),

removed as (
    delete from reltask.jobs as job
    where job.id = any (array(select id from held where next_time is null))
),

advanced as (
    update reltask.jobs as job
    set slot_no = held.slot_no + 1 + held.skipped,
        fence = held.fence + held.skipped,
        -- strictly later than the last, whatever the clocks did
        next_run_time = greatest(held.next_time, held.next_run_time + interval '1 microsecond'),
        not_before = null,
        args = coalesce(held.args::json, job.args),
        steps = 0,
        suspended = false,
        -- a cancelled one-off that goes on with Again is still cancelled; a schedule goes on
        cancel_slot = case when job.schedule is null and job.cancel_slot = held.slot_no
                           then held.slot_no + 1 + held.skipped end,
        attempt = 0,
        slot_started_at = null,
        last_run_time = parameters.now,
        losses = 0,
        isolated = false,
        locked_by = null,
        locked_at = null,
        heartbeat_at = null,
        claim_timeout_ms = null,
        lock_expires_at = null,
        claim_token = null,
        progress = null
    from held
    cross join parameters
    where job.id = any (array[held.id]) and held.next_time is not null
)

select id, fence, false as dead
from held;
