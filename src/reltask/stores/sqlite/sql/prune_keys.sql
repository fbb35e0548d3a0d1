-- Purpose       Remove keys of unique tasks whose job is gone and whose time is over.
-- Precondition  Of the :limit keys after (:task, :key), in both statements.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       Statement 1: the last key that is looked at; none if there are fewer than :limit.
--               Statement 2: one row per removed key.
-- See           SQL.md: one writer.

select task, key
from reltask_keys
where (task, key) > (:task, :key)
order by task, key
limit 1 offset :limit - 1;

delete from reltask_keys
where (task, key) in (
    select task, key
    from reltask_keys
    where (task, key) > (:task, :key)
    order by task, key
    limit :limit
)
  and coalesce(until <= :now, 1)
  and not exists (select 1 from reltask_jobs as job where job.id = reltask_keys.job_id)
returning task;
