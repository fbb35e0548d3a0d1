-- Purpose       End the slots of one-offs with limits: delete each job's row, write its ledger row,
--               and mark their places as free.
-- Precondition  Each job's row still has this id, owner and fence, and no parent. A row that does
--               not match is not written, and is missing from the result.
-- Lock order    Rows by ascending id. Waits :patience for a locked row, then fails (55P03).
-- Returns       First the number of accepted completions. If some were refused, then one row per
--               accepted completion: id, fence.
-- Parameters    :patience is a length for lock_timeout; null: the session's.
-- See           SQL.md: nullable now, materialized CTE, fence, lock order by id, primary-key
--               lookup, lock timeout, silenced trigger.
--
-- Does what complete_one_offs.sql does, which leaves the marks to a trigger: one for each job and
-- key. Here there is one for each key. Measured, a trigger's mark takes 23 µs, more than the rest.
-- Jobs without limits may be in the batch.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now,
           set_config(
               'lock_timeout', coalesce(:patience::text, current_setting('lock_timeout')), true
           ) as lock_timeout,
           set_config('reltask.marked', 'ends', true) as silenced
),

removed as (
    delete from reltask.jobs as job
    using (
        select one.*
        from unnest(
            :ids::uuid[], :fences::bigint[], :outcomes::text[], :results::text[], :errors::text[],
            :drops::boolean[]
        ) as one (id, fence, outcome, result, error, drops)
        -- so that the settings are made before the first row is locked
        cross join parameters
        order by id
    ) as given
    where job.id = any (array[given.id])
      and job.fence = given.fence and job.locked_by is not distinct from :worker::text
      and job.parent_id is null
    returning job.id, job.fence, job.slot_no, job.task, job.key, job.queue, job.attempt,
              job.next_run_time, job.due_at, job.locked_at, job.steps, job.limit_key, job.limits,
              given.outcome, given.result, given.error, job.priority,
              case when given.drops is null then job.args end as args,
              case when given.drops is null then job.headers end as headers
),

ledger as (
    insert into reltask.runs (
        job_id, fence, slot_no, task, key, queue, worker, attempt,
        nominal_time, due_at, claimed_at, finished_at, outcome, error, result, steps,
        ends_job, priority, args, headers
    )
    select removed.id, removed.fence, removed.slot_no, removed.task, removed.key, removed.queue,
           :worker::text, removed.attempt, removed.next_run_time, removed.due_at, removed.locked_at,
           parameters.now, coalesce(removed.outcome, 'succeeded'), removed.error,
           removed.result::json, nullif(removed.steps, 0), true, removed.priority, removed.args,
           removed.headers
    from removed
    cross join parameters
),

-- Due at once, by whatever clock the claims were made.
freed as (
    insert into reltask.marks (task, at, kind, name, freed)
    select 'limit', min(removed.locked_at), 'limit', taken.key, count(*)::integer
    from removed
    cross join lateral pg_catalog.unnest(
        coalesce(removed.limits, array[removed.limit_key])
    ) as taken (key)
    where removed.limit_key is not null and taken.key is not null
    group by taken.key
),

-- Later statements of the transaction, if there are any, are not this one's business.
counted as materialized (
    select count(*) as accepted, set_config('reltask.marked', '', true) as heard
    from removed
)

select null as id, null as fence, accepted
from counted
union all
select removed.id, removed.fence, null
from removed
cross join counted
where counted.accepted < pg_catalog.cardinality(:ids::uuid[]);
