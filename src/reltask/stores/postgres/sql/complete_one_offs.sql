-- Purpose       end the slots of one-offs: each row is removed, and becomes a row of the ledger.
-- Precondition  id, owner and fence still match; what does not match is left alone and missing from the answer.
-- Lock order    ids ascending; waits for a row held by another statement and checks it again afterwards.
--
-- What `complete_jobs` does, for batches in which nothing comes again: most of them. A row is found and locked once, by
-- the delete itself, and the ledger is written from what was deleted.
--
-- Each row is found by its id. "Any of this one" says to people what "equal" says; the planner can only look it up, even
-- where the statistics say that there is nothing to walk. "Is not distinct from" keeps it from walking all that is held.
--
-- The first row says how many there were. The others name them, and only travel if some are missing.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

removed as (
    delete from reltask.jobs as job
    using (
        select *
        from unnest(:ids::uuid[], :fences::bigint[], :outcomes::text[], :results::text[], :errors::text[])
            as one (id, fence, outcome, result, error)
        order by id
    ) as given
    where job.id = any (array[given.id])
      and job.fence = given.fence and job.locked_by is not distinct from :worker::text
    returning job.id, job.fence, job.slot_no, job.task, job.key, job.queue, job.attempt, job.next_run_time, job.due_at,
              job.locked_at, given.outcome, given.result, given.error
),

ledger as (
    insert into reltask.runs (
        job_id, fence, slot_no, task, key, queue, worker, attempt,
        nominal_time, due_at, claimed_at, finished_at, outcome, error, result)
    select removed.id, removed.fence, removed.slot_no, removed.task, removed.key, removed.queue, :worker::text,
           removed.attempt, removed.next_run_time, removed.due_at, removed.locked_at, parameters.now,
           coalesce(removed.outcome, 'succeeded'), removed.error, removed.result::json
    from removed
    cross join parameters
),

counted as materialized (
    select count(*) as accepted
    from removed
)

select null as id, null as fence, accepted
from counted
union all
select removed.id, removed.fence, null
from removed
cross join counted
where counted.accepted < cardinality(:ids::uuid[]);
