-- Purpose       Find keys of limits whose count is not that of their claimed jobs, and keys with
--               room and due jobs that no mark will find.
-- Precondition  None. Reads every claimed job that has a limit, and every key.
-- Lock order    Locks nothing.
-- Returns       One row per key that is wrong: the places that are counted, less marks that are not
--               folded yet, the claimed jobs, and whether due jobs are stranded.
-- See           SQL.md: nullable now, materialized CTE, limit.

with recursive
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

held as materialized (
    select taken.key, count(*)::integer as jobs
    from reltask.jobs as job
    cross join lateral pg_catalog.unnest(coalesce(job.limits, array[job.limit_key])) as taken (key)
    where job.locked_by is not null and job.limit_key is not null
    group by taken.key
),

freed as materialized (
    select name as key, sum(freed)::integer as places
    from reltask.marks
    where queue = '' and task = 'limit' and freed <> 0
    group by name
),

counted as (
    select counter.key, counter.running - coalesce(freed.places, 0) as places
    from reltask.limit_keys as counter
    left join freed on freed.key = counter.key
),

waiting (key) as (
    (
        select job.limit_key
        from reltask.jobs as job
        where job.locked_by is null and job.paused_at is null and job.dead_at is null
          and job.limit_key is not null
        order by job.limit_key
        limit 1
    )
    union all
    select following.limit_key
    from waiting
    cross join lateral (
        select job.limit_key
        from reltask.jobs as job
        where job.limit_key > waiting.key
          and job.locked_by is null and job.paused_at is null and job.dead_at is null
          and job.limit_key is not null
        order by job.limit_key
        limit 1
    ) as following
),

-- A mark for all workers may be as late as the next token, or a second.
stranded as materialized (
    select waiting.key
    from waiting
    cross join parameters
    join reltask.limits as rule on rule.name = split_part(waiting.key, ':', 1)
    left join reltask.limit_keys as counter on counter.key = waiting.key
    where (rule.running is null or rule.running > coalesce(counter.running, 0))
      and not exists (
          select from reltask.marks as mark
          where mark.kind = 'limit' and mark.name = waiting.key and mark.queue = ''
            and mark.at <= parameters.now + interval '1 second' + coalesce(
                rule.rate_period_ms::float8 / rule.rate_count::float8, 0::float8
            ) * interval '1 millisecond'
      )
      and exists (
          select
          from reltask.jobs as job
          where job.limit_key = waiting.key and job.due_at <= parameters.now
            and job.locked_by is null and job.paused_at is null and job.dead_at is null
            and job.limit_key is not null
            and not exists (
                select from reltask.marks as mark
                where mark.kind = 'limit' and mark.name = waiting.key
                  and mark.queue = job.queue and mark.task = job.task
                  and mark.at <= parameters.now + interval '1 second' + coalesce(
                      rule.rate_period_ms::float8 / rule.rate_count::float8, 0::float8
                  ) * interval '1 millisecond'
            )
      )
)

select coalesce(counted.key, held.key, stranded.key) as key,
       coalesce(counted.places, 0) as counted, coalesce(held.jobs, 0) as claimed,
       stranded.key is not null as is_stranded
from counted
full join held on held.key = counted.key
full join stranded on stranded.key = coalesce(counted.key, held.key)
where coalesce(counted.places, 0) <> coalesce(held.jobs, 0) or stranded.key is not null
order by 1
limit :limit::integer;
