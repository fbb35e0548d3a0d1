-- Purpose       Find keys of limits whose count is not that of their claimed jobs, and keys with
--               room and due jobs that no mark will find.
-- Precondition  None. Reads every claimed job that has a limit, and every key.
-- Lock order    Locks nothing.
-- Returns       One row per key that is wrong: the places that are counted, less marks that are not
--               folded yet, the claimed jobs, and whether due jobs are stranded.
-- See           SQL.md: one writer, limit.

with recursive
held as materialized (
    select taken.value as key, count(*) as jobs
    from reltask_jobs as jobs
    join json_each(coalesce(jobs.limits, json_array(jobs.limit_key))) as taken
    where jobs.locked_by is not null and jobs.limit_key is not null
    group by 1
),

freed as materialized (
    select name as key, sum(freed) as places
    from reltask_marks
    where queue = '' and task = 'limit' and freed <> 0
    group by name
),

waiting (key) as (
    select min(limit_key)
    from reltask_jobs
    where locked_by is null and paused_at is null and dead_at is null and limit_key is not null
    union all
    select (
        select min(jobs.limit_key)
        from reltask_jobs as jobs
        where jobs.limit_key > waiting.key
          and jobs.locked_by is null and jobs.paused_at is null and jobs.dead_at is null
          and jobs.limit_key is not null
    )
    from waiting
    where waiting.key is not null
),

-- A mark for all workers may be as late as the next token, or a second.
stranded as materialized (
    select waiting.key
    from waiting
    join reltask_limits as rule
        on rule.name = substr(waiting.key, 1, instr(waiting.key || ':', ':') - 1)
    left join reltask_limit_keys as counter on counter.key = waiting.key
    where (rule.running is null or rule.running > coalesce(counter.running, 0))
      and not exists (
          select 1
          from reltask_marks as marks
          where marks.kind = 'limit' and marks.name = waiting.key and marks.queue = ''
            and marks.at <= :now + 1000000
                + coalesce(1000.0 * rule.rate_period_ms / rule.rate_count, 0)
      )
      and exists (
          select 1
          from reltask_jobs as jobs
          where jobs.limit_key = waiting.key and jobs.due_at <= :now
            and jobs.locked_by is null and jobs.paused_at is null and jobs.dead_at is null
            and jobs.limit_key is not null
            and not exists (
                select 1
                from reltask_marks as marks
                where marks.kind = 'limit' and marks.name = waiting.key
                  and marks.queue = jobs.queue and marks.task = jobs.task
                  and marks.at <= :now + 1000000
                      + coalesce(1000.0 * rule.rate_period_ms / rule.rate_count, 0)
            )
      )
),

keys as (
    select key from reltask_limit_keys
    union
    select key from held
    union
    select key from stranded
)

select keys.key, coalesce(counter.running, 0) - coalesce(freed.places, 0) as counted,
       coalesce(held.jobs, 0) as claimed,
       keys.key in (select key from stranded) as is_stranded
from keys
left join reltask_limit_keys as counter on counter.key = keys.key
left join freed on freed.key = keys.key
left join held on held.key = keys.key
where coalesce(counter.running, 0) - coalesce(freed.places, 0) <> coalesce(held.jobs, 0)
   or keys.key in (select key from stranded)
order by keys.key
limit :limit;
