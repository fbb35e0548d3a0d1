-- Purpose       Read the limits of one job: what of each key is in use, and how many wait for it.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per key. in_use counts ends that no claim has folded yet; tokens is null
--               without a rate; waiting are the due jobs that wait at this key, up to :most.
-- See           SQL.md: nullable now, limit.

with
wanted as materialized (
    select taken.value as key,
           substr(taken.value, 1, instr(taken.value || ':', ':') - 1) as name
    from reltask_jobs as job
    join json_each(coalesce(job.limits, json_array(job.limit_key))) as taken
    where job.id = :job_id and job.limit_key is not null
)

select wanted.key, rule.running, rule.rate_count, rule.rate_period_ms, rule.burst,
       coalesce(counter.running, 0) - (
           select coalesce(sum(mark.freed), 0)
           from reltask_marks as mark
           where mark.kind = 'limit' and mark.name = wanted.key
       ) as in_use,
       (
           select count(*)
           from (
               select 1
               from reltask_jobs as job
               where job.limit_key = wanted.key and job.due_at <= :now
                 and job.locked_by is null and job.paused_at is null and job.dead_at is null
               limit :most
           )
       ) as waiting,
       case when rule.rate_count is null then null
            when counter.key is null then cast(rule.burst as real)
            else min(
                counter.tokens + max(:now - counter.refilled_at, 0) / 1000.0
                    * rule.rate_count / rule.rate_period_ms,
                cast(rule.burst as real)
            ) end as tokens
from wanted
join reltask_limits as rule on rule.name = wanted.name
left join reltask_limit_keys as counter on counter.key = wanted.key
order by wanted.key;
