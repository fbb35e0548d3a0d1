-- Purpose       Read the limits of one job: what of each key is in use, and how many wait for it.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per key. in_use counts ends that no claim has folded yet; tokens is null
--               without a rate; waiting are the due jobs that wait at this key, up to :most.
-- See           SQL.md: nullable now, limit.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

wanted as materialized (
    select taken.key, split_part(taken.key, ':', 1) as name
    from (
        select limits, limit_key
        from reltask.jobs
        where id = :id::uuid
        limit 1
    ) as job
    cross join lateral pg_catalog.unnest(coalesce(job.limits, array[job.limit_key])) as taken (key)
    where taken.key is not null
)

select wanted.key, rule.running, rule.rate_count, rule.rate_period_ms, rule.burst,
       coalesce(counter.running, 0)::bigint - (
           select coalesce(sum(mark.freed), 0::bigint)
           from reltask.marks as mark
           where mark.kind = 'limit' and mark.name = wanted.key
       ) as in_use,
       (
           select count(*)
           from (
               select
               from reltask.jobs as job
               where job.limit_key = wanted.key and job.due_at <= parameters.now
                 and job.locked_by is null and job.paused_at is null and job.dead_at is null
               limit :most::bigint
           ) as part
       ) as waiting,
       case when rule.rate_count is null then null
            when counter.key is null then rule.burst::float8
            else least(
                counter.tokens + greatest(
                    extract(epoch from parameters.now - counter.refilled_at)::float8, 0
                ) * rule.rate_count::float8 * 1000::float8 / rule.rate_period_ms::float8,
                rule.burst::float8
            ) end as tokens
from wanted
cross join parameters
join reltask.limits as rule on rule.name = wanted.name
left join reltask.limit_keys as counter on counter.key = wanted.key
order by wanted.key;
