-- Purpose       List the keys of a limit: those with the most waiting jobs first.
-- Precondition  None. Reads every job that has a limit.
-- Lock order    Locks nothing.
-- Returns       One row per key that is counted or waited for. tokens is null without a rate.
-- See           SQL.md: one writer, limit.

with
used as (
    select wanted.value as key,
           sum(jobs.locked_by is not null) as in_use,
           sum(
               jobs.locked_by is null and jobs.paused_at is null and jobs.dead_at is null
               and jobs.due_at <= :now
           ) as waiting
    from reltask_jobs as jobs
    join json_each(coalesce(jobs.limits, json_array(jobs.limit_key))) as wanted
    where jobs.limit_key is not null
      and substr(wanted.value, 1, instr(wanted.value || ':', ':') - 1) = :name
    group by 1
),

keys as (
    select key from used
    union
    select key from reltask_limit_keys where name = :name
)

select keys.key, coalesce(used.in_use, 0) as in_use, coalesce(used.waiting, 0) as waiting,
       case when rule.rate_count is null then null
            when counter.key is null then cast(rule.burst as real)
            else min(
                counter.tokens + max(:now - counter.refilled_at, 0) / 1000.0
                    * rule.rate_count / rule.rate_period_ms,
                cast(rule.burst as real)
            ) end as tokens
from keys
left join used on used.key = keys.key
left join reltask_limit_keys as counter on counter.key = keys.key
left join reltask_limits as rule on rule.name = :name
order by coalesce(used.waiting, 0) desc, coalesce(used.in_use, 0) desc, keys.key
limit :limit;
