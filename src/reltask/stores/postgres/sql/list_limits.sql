-- Purpose       List the limits, and how much of each is in use.
-- Precondition  None. Reads every claimed job that has a limit, and up to :most that are due.
-- Lock order    Locks nothing.
-- Returns       One row per limit, by name. tokens are those of a limit with a single key.
-- See           SQL.md: nullable now, limit.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

held as (
    select split_part(taken.key, ':', 1) as name, count(*) as jobs
    from reltask.jobs as job
    cross join lateral pg_catalog.unnest(coalesce(job.limits, array[job.limit_key])) as taken (key)
    where job.locked_by is not null and job.limit_key is not null
    group by 1
),

waiting as (
    select split_part(wanted.key, ':', 1) as name, count(*) as jobs
    from (
        select limits, limit_key
        from reltask.jobs
        where locked_by is null and paused_at is null and dead_at is null
          and limit_key is not null and due_at <= (select now from parameters)
        limit :most::bigint
    ) as job
    cross join lateral pg_catalog.unnest(coalesce(job.limits, array[job.limit_key])) as wanted (key)
    group by 1
),

counted as (
    select name, count(*) as keys
    from reltask.limit_keys
    group by name
)

select rule.name, rule.running, rule.rate_count, rule.rate_period_ms, rule.burst,
       coalesce(counted.keys, 0) as keys, coalesce(held.jobs, 0) as in_use,
       coalesce(waiting.jobs, 0) as waiting,
       case when rule.rate_count is null or counter.key is null and counted.keys > 0 then null
            when counter.key is null then rule.burst::float8
            else least(
                counter.tokens + greatest(
                    extract(epoch from parameters.now - counter.refilled_at)::float8, 0
                ) * rule.rate_count::float8 * 1000::float8 / rule.rate_period_ms::float8,
                rule.burst::float8
            ) end as tokens
from reltask.limits as rule
cross join parameters
left join reltask.limit_keys as counter on counter.key = rule.name
left join counted on counted.name = rule.name
left join held on held.name = rule.name
left join waiting on waiting.name = rule.name
order by rule.name;
