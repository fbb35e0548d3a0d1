-- Purpose       List ledger rows, newest first: of one job, or of all.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per run.

with
-- The runs of one job end in the order of their fences. If :job_id is null, nothing is read here.
of_one as (
    select *
    from reltask.runs
    where job_id = :job_id::uuid
      and (:task::text is null or task = :task::text)
    order by fence desc
    limit :limit::integer
),

of_all as (
    select *
    from reltask.runs
    where :job_id::uuid is null
      and (:task::text is null or task = :task::text)
    order by finished_at desc, fence desc, job_id
    limit :limit::integer
)

select job_id, fence, slot_no, task, key, queue, worker, attempt, nominal_time, due_at, claimed_at,
       finished_at, outcome, error, result, steps
from (table of_one union all table of_all) as run
order by finished_at desc, fence desc, job_id;
