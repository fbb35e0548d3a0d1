-- Purpose       Remove keys of unique tasks whose job is gone and whose time is over.
-- Precondition  The key still has the job that the snapshot shows as gone.
-- Lock order    The keys; locked ones are skipped.
-- Returns       One row: the number of removed keys, and the last key that was looked at, or nulls
--               if there were fewer than :limit after (:task, :key).
-- See           SQL.md: nullable now, materialized CTE, skip locked, primary-key lookup.

with
seen as materialized (
    select one.task, one.key, one.job_id, one.until
    from reltask.keys as one
    where (one.task, one.key) > (:task::text, :key::text)
    order by one.task, one.key
    limit :limit::integer
    for update skip locked
),

removed as (
    delete from reltask.keys as held
    using seen
    where held.task = seen.task and held.key = seen.key and held.job_id = seen.job_id
      and coalesce(seen.until <= coalesce(:now::timestamptz, statement_timestamp()), true)
      and not exists (select from reltask.jobs as job where job.id = any (array[seen.job_id]))
    returning 1
)

select (select count(*) from removed) as removed, last.task, last.key
from (values (1)) as always (one)
left join lateral (
    select seen.task, seen.key
    from seen
    where (select count(*) from seen) = :limit::integer
    order by seen.task desc, seen.key desc
    limit 1
) as last on true;
