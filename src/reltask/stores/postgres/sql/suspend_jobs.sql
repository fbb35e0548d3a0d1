-- Purpose       End runs of durable functions that wait: the slot and its steps stay, the attempt
--               is given back, and the job is due at its wake time.
-- Precondition  Each job's row still has this id, owner and fence. A row that does not match is not
--               written, and is missing from the result.
-- Lock order    Rows by ascending id; locked rows are skipped, so a settlement never waits. A row
--               missing from the result is therefore suspect, not lost; read_holds.sql decides.
-- Returns       One row per accepted suspension: id, fence, and dead, which is always false.
-- Parameters    :seen is the wake_seq that read_waits.sql has returned together with all that the
--               run waits for. A wake time that is null: only a mark wakes the job.
-- See           SQL.md: nullable now, materialized CTE, fence, lock order by id, skip locked,
--               primary-key lookup.
--
-- Only wake_seq decides, as it is in the locked row. If a mark was folded after the run has looked,
-- it is not the number seen, and the job is due at once. A mark that is folded later finds the row
-- suspended: see fold_marks.sql. A cancelled job is due at once as well. There is nothing in
-- between, because both lock the row.
--
-- The progress stays for the next run.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

held as materialized (
    select job.id, job.fence, job.slot_no, job.task, job.key, job.queue, job.attempt,
           job.next_run_time, job.due_at, job.locked_at, given.wake_at,
           job.wake_seq <> given.seen or coalesce(job.cancel_slot = job.slot_no, false) as is_due
    from (
        select *
        from unnest(
            :ids::uuid[], :fences::bigint[], :seen::bigint[], :wake_ats::timestamptz[]
        ) as one (id, fence, seen, wake_at)
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
        nominal_time, due_at, claimed_at, finished_at, outcome
    )
    select held.id, held.fence, held.slot_no, held.task, held.key, held.queue, :worker::text,
           held.attempt, held.next_run_time, held.due_at, held.locked_at, parameters.now,
           'suspended'
    from held
    cross join parameters
),

kept as (
    update reltask.jobs as job
    set suspended = true,
        not_before = case when held.is_due then parameters.now
                          else coalesce(held.wake_at, timestamptz '8999-12-31 00:00:00+00') end,
        attempt = greatest(held.attempt - 1, 0),
        losses = 0,
        isolated = false,
        locked_by = null,
        locked_at = null,
        heartbeat_at = null,
        claim_timeout_ms = null,
        lock_expires_at = null,
        claim_token = null
    from held
    cross join parameters
    where job.id = any (array[held.id])
)

select id, fence, false as dead
from held;
