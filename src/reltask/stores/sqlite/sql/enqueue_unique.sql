-- Purpose       Insert one-offs of unique tasks whose key is free.
-- Precondition  Neither the table nor the ledger has the id. The key has no row, or its job is
--               gone, dead or, if it is free from the start on, begun, and its time is over.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       Statement 2: one row per inserted job, its id.
-- See           SQL.md: one writer, lost answer, JSON batch, bare columns.
--
-- A known id is left out before its key is taken. Else a job that was sent twice, and has ended,
-- would leave a key that no end frees. Of several jobs with one key the first is taken.

with
batch as (
    select min(json_extract(value, '$.id')) as id,
           json_extract(value, '$.task') as task,
           json_extract(value, '$.unique.key') as unique_key,
           json_extract(value, '$.unique.keep') as keep,
           json_extract(value, '$.unique.until_start') as until_start
    from json_each(:jobs)
    where not exists (
        select 1 from reltask_jobs where id = json_extract(value, '$.id')
        union all
        select 1 from reltask_runs where job_id = json_extract(value, '$.id')
    )
    group by json_extract(value, '$.task'), json_extract(value, '$.unique.key')
)

insert into reltask_keys (task, key, job_id, until, until_start)
select task, unique_key, id, :now + keep, until_start
from batch
where true
on conflict (task, key) do update
set job_id = excluded.job_id, until = excluded.until, until_start = excluded.until_start
where coalesce(reltask_keys.until <= :now, 1)
  and not exists (
      select 1
      from reltask_jobs as job
      where job.id = reltask_keys.job_id and job.dead_at is null
        and (not reltask_keys.until_start or job.slot_started_at is null)
  );

with
batch as (
    select json_extract(value, '$.id') as id,
           json_extract(value, '$.task') as task,
           json_extract(value, '$.key') as key,
           json_extract(value, '$.queue') as queue,
           json_extract(value, '$.priority') as priority,
           json_extract(value, '$.args') as args,
           json_extract(value, '$.max_attempts') as max_attempts,
           json_extract(value, '$.lock_timeout_ms') as lock_timeout_ms,
           json_extract(value, '$.run_at') as run_at,
           json_extract(value, '$.delay') as delay,
           json_extract(value, '$.headers') as headers,
           json_extract(value, '$.limit_key') as limit_key,
           json_extract(value, '$.limits') as limits,
           json_extract(value, '$.unique.key') as unique_key
    from json_each(:jobs)
)

insert into reltask_jobs (
    id, task, key, queue, priority, args, max_attempts, lock_timeout_ms, created_at, next_run_time,
    headers, limit_key, limits
)
select batch.id, batch.task, batch.key, batch.queue, batch.priority, batch.args,
       batch.max_attempts, batch.lock_timeout_ms, :now,
       coalesce(batch.run_at, :now + coalesce(batch.delay, 0)), batch.headers,
       batch.limit_key, batch.limits
from batch
join reltask_keys as held
    on held.task = batch.task and held.key = batch.unique_key and held.job_id = batch.id
where not exists (select 1 from reltask_runs where job_id = batch.id)
on conflict do nothing
returning id;
