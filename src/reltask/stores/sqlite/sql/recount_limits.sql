-- Purpose       Heal limits: count the places again, mark keys that have room and due jobs but no
--               mark, and forget keys that are not in use.
-- Precondition  The count of a key is wrong; or it has room, a due job and no mark; or it has not
--               been used for an hour.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       Statements 1, 2 and 3: one row per key that was counted or marked.
-- See           SQL.md: one writer, limit.
--
-- Nothing here is needed while the protocol holds. It heals what a restored backup or a hand-made
-- change has broken.

with
held as materialized (
    select taken.value as key, count(*) as places
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
)

update reltask_limit_keys
set running = coalesce((select places from held where held.key = reltask_limit_keys.key), 0)
        + coalesce((select places from freed where freed.key = reltask_limit_keys.key), 0),
    seq = seq + 1
where running <> coalesce((select places from held where held.key = reltask_limit_keys.key), 0)
          + coalesce((select places from freed where freed.key = reltask_limit_keys.key), 0)
returning key;

with
held as materialized (
    select taken.value as key, count(*) as places
    from reltask_jobs as jobs
    join json_each(coalesce(jobs.limits, json_array(jobs.limit_key))) as taken
    where jobs.locked_by is not null and jobs.limit_key is not null
    group by 1
)

insert into reltask_limit_keys (key, name, running, tokens, refilled_at)
select held.key, rule.name,
       held.places + coalesce(
           (
               select sum(freed)
               from reltask_marks
               where kind = 'limit' and name = held.key and freed <> 0
           ), 0
       ),
       0, :now
from held
join reltask_limits as rule
    on rule.name = substr(held.key, 1, instr(held.key || ':', ':') - 1)
where not exists (select 1 from reltask_limit_keys as counter where counter.key = held.key)
returning key;

with recursive
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
)

insert into reltask_marks (task, at, kind, name)
select 'limit', :now, 'limit', waiting.key
from waiting
join reltask_limits as rule
    on rule.name = substr(waiting.key, 1, instr(waiting.key || ':', ':') - 1)
left join reltask_limit_keys as counter on counter.key = waiting.key
where (rule.running is null or rule.running > coalesce(counter.running, 0))
  and not exists (
      select 1
      from reltask_marks as marks
      where marks.kind = 'limit' and marks.name = waiting.key
        and marks.at <= :now + coalesce(1000.0 * rule.rate_period_ms / rule.rate_count, 0)
  )
  and exists (
      select 1
      from reltask_jobs as jobs
      where jobs.limit_key = waiting.key and jobs.due_at <= :now
        and jobs.locked_by is null and jobs.paused_at is null and jobs.dead_at is null
        and jobs.limit_key is not null
  )
limit :limit
returning name;

delete from reltask_limit_keys
where key in (
    select counter.key
    from reltask_limit_keys as counter
    join reltask_limits as rule on rule.name = counter.name
    where counter.running = 0 and counter.key <> counter.name
      and counter.refilled_at < :now - 3600 * 1000000
      and counter.refilled_at < :now - coalesce(
          1000.0 * rule.rate_period_ms * rule.burst / rule.rate_count, 0
      )
      and not exists (
          select 1
          from reltask_marks as marks
          where marks.kind = 'limit' and marks.name = counter.key
      )
    limit :limit
);
