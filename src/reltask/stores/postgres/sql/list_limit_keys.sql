-- Purpose       List the keys of a limit: those with the most waiting jobs first.
-- Precondition  None. Reads every job that has a limit.
-- Lock order    Locks nothing.
-- Returns       One row per key that is counted or waited for. tokens is null without a rate.
-- See           SQL.md: nullable now, limit.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

used as (
    select wanted.key,
           count(*) filter (where job.locked_by is not null) as in_use,
           count(*) filter (
               where job.locked_by is null and job.paused_at is null and job.dead_at is null
                 and job.due_at <= (select now from parameters)
           ) as waiting
    from reltask.jobs as job
    cross join lateral pg_catalog.unnest(coalesce(job.limits, array[job.limit_key])) as wanted (key)
    where job.limit_key is not null and split_part(wanted.key, ':', 1) = :name::text
    group by wanted.key
),

keys as (
    select key from used
    union
    select key from reltask.limit_keys where name = :name::text
)

select keys.key, coalesce(used.in_use, 0) as in_use, coalesce(used.waiting, 0) as waiting,
       case when rule.rate_count is null then null
            when counter.key is null then rule.burst::float8
            else least(
                counter.tokens + greatest(
                    extract(epoch from parameters.now - counter.refilled_at)::float8, 0
                ) * rule.rate_count::float8 * 1000::float8 / rule.rate_period_ms::float8,
                rule.burst::float8
            ) end as tokens
from keys
cross join parameters
left join used on used.key = keys.key
left join reltask.limit_keys as counter on counter.key = keys.key
left join reltask.limits as rule on rule.name = :name::text
order by coalesce(used.waiting, 0) desc, coalesce(used.in_use, 0) desc, keys.key
limit :limit::integer;
