-- Purpose       Insert jobs that are not in the database yet.
-- Precondition  Neither the table nor the ledger has the id, and no row has its (task, key). Other
--               jobs of the batch are left out.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row per inserted job: its id.
-- See           SQL.md: one writer, lost answer, JSON batch.

with
batch as (
    select json_extract(value, '$.id') as id,
           json_extract(value, '$.task') as task,
           json_extract(value, '$.key') as key,
           json_extract(value, '$.queue') as queue,
           json_extract(value, '$.priority') as priority,
           json_extract(value, '$.args') as args,
           json_extract(value, '$.schedule') as schedule,
           json_extract(value, '$.declaration') as declaration,
           json_extract(value, '$.app_version') as app_version,
           json_extract(value, '$.max_attempts') as max_attempts,
           json_extract(value, '$.lock_timeout_ms') as lock_timeout_ms,
           json_extract(value, '$.run_at') as run_at,
           json_extract(value, '$.delay') as delay,
           json_extract(value, '$.parent.job_id') as parent_id,
           json_extract(value, '$.parent.slot_no') as parent_slot,
           json_extract(value, '$.parent.step') as parent_step,
           json_extract(value, '$.parent.nth') as parent_nth,
           json_extract(value, '$.headers') as headers,
           json_extract(value, '$.limit_key') as limit_key,
           json_extract(value, '$.limits') as limits
    from json_each(:jobs)
)

insert into reltask_jobs (
    id, task, key, queue, priority, args, schedule, declaration, app_version, max_attempts,
    lock_timeout_ms, created_at, next_run_time, parent_id, parent_slot, parent_step, parent_nth,
    headers, limit_key, limits
)
select id, task, key, queue, priority, args, schedule, declaration, app_version, max_attempts,
       lock_timeout_ms, :now, coalesce(run_at, :now + coalesce(delay, 0)), parent_id, parent_slot,
       parent_step, parent_nth, headers, limit_key, limits
from batch
where not exists (select 1 from reltask_runs where job_id = batch.id)
on conflict do nothing
returning id;
