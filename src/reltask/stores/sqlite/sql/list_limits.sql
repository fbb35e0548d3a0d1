-- Purpose       List the limits, and how much of each is in use.
-- Precondition  None. Reads every claimed job that has a limit, and up to :most that are due.
-- Lock order    Locks nothing.
-- Returns       One row per limit, by name. tokens are those of a limit with a single key.
-- See           SQL.md: one writer, limit.

with
used as (
    select substr(wanted.value, 1, instr(wanted.value || ':', ':') - 1) as name,
           sum(jobs.is_claimed) as in_use, sum(not jobs.is_claimed) as waiting
    from (
        select limits, limit_key, 1 as is_claimed
        from reltask_jobs
        where locked_by is not null and limit_key is not null
        union all
        select limits, limit_key, 0
        from (
            select limits, limit_key
            from reltask_jobs
            where locked_by is null and paused_at is null and dead_at is null
              and limit_key is not null and due_at <= :now
            limit :most
        )
    ) as jobs
    join json_each(coalesce(jobs.limits, json_array(jobs.limit_key))) as wanted
    group by 1
)

select rule.name, rule.running, rule.rate_count, rule.rate_period_ms, rule.burst,
       (select count(*) from reltask_limit_keys as counter where counter.name = rule.name) as keys,
       coalesce(used.in_use, 0) as in_use, coalesce(used.waiting, 0) as waiting,
       case when rule.rate_count is null then null
            when counter.key is not null
            then min(
                counter.tokens + max(:now - counter.refilled_at, 0) / 1000.0
                    * rule.rate_count / rule.rate_period_ms,
                cast(rule.burst as real)
            )
            when not exists (
                select 1 from reltask_limit_keys as other where other.name = rule.name
            ) then cast(rule.burst as real) end as tokens
from reltask_limits as rule
left join reltask_limit_keys as counter on counter.key = rule.name
left join used on used.name = rule.name
order by rule.name;
