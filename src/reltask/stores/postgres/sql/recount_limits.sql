-- Purpose       Heal limits: count the places again, mark keys that have room and due jobs but no
--               mark, and forget keys that are not in use.
-- Precondition  The key's row is as it is in this statement's snapshot (seq): only claims change
--               it, and an end changes nothing about the sum of claims and marks.
-- Lock order    Keys; locked ones are skipped: a claim is looking at them.
-- Returns       One row: the number of keys that were counted or marked.
-- See           SQL.md: nullable now, materialized CTE, skip locked, limit.
--
-- Nothing here is needed while the protocol holds. It heals what a restored backup or a hand-made
-- change has broken.

with recursive
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

held as materialized (
    select taken.key, count(*)::integer as places
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

actual as materialized (
    select counter.key, counter.seq, counter.running,
           coalesce(held.places, 0) + coalesce(freed.places, 0) as places
    from reltask.limit_keys as counter
    left join held on held.key = counter.key
    left join freed on freed.key = counter.key
),

wrong as materialized (
    select counter.key, actual.places
    from actual
    cross join lateral (
        select key
        from reltask.limit_keys
        where key = any (array[actual.key]) and seq = actual.seq
        for update skip locked
    ) as counter
    where actual.running <> actual.places
    order by counter.key
    limit :limit::integer
),

counted as (
    update reltask.limit_keys as counter
    set running = wrong.places,
        seq = counter.seq + 1
    from wrong
    where counter.key = any (array[wrong.key])
    returning counter.key
),

added as (
    insert into reltask.limit_keys (key, name, running, tokens, refilled_at)
    select held.key, rule.name, held.places + coalesce(freed.places, 0), 0, parameters.now
    from held
    cross join parameters
    join reltask.limits as rule on rule.name = split_part(held.key, ':', 1)
    left join freed on freed.key = held.key
    where not exists (select from reltask.limit_keys as counter where counter.key = held.key)
    order by held.key
    on conflict do nothing
    returning key
),

idle as materialized (
    select counter.key
    from actual
    join reltask.limits as rule on rule.name = split_part(actual.key, ':', 1)
    cross join parameters
    cross join lateral (
        select key
        from reltask.limit_keys
        where key = any (array[actual.key]) and seq = actual.seq
          and refilled_at < parameters.now - interval '1 hour'
          and refilled_at < parameters.now - coalesce(
              rule.rate_period_ms::float8 * rule.burst::float8 / rule.rate_count::float8,
              0::float8
          ) * interval '1 millisecond'
        for update skip locked
    ) as counter
    where actual.running = 0 and actual.places = 0 and actual.key <> rule.name
      and not exists (
          select from reltask.marks as mark where mark.kind = 'limit' and mark.name = actual.key
      )
    limit :limit::integer
),

forgotten as (
    delete from reltask.limit_keys as counter
    using idle
    where counter.key = any (array[idle.key])
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

stranded as materialized (
    select waiting.key
    from waiting
    cross join parameters
    join reltask.limits as rule on rule.name = split_part(waiting.key, ':', 1)
    left join actual on actual.key = waiting.key
    where (rule.running is null or rule.running > coalesce(actual.running, 0))
      and not exists (
          select from reltask.marks as mark where mark.kind = 'limit' and mark.name = waiting.key
            and mark.at <= parameters.now + coalesce(
                rule.rate_period_ms::float8 / rule.rate_count::float8, 0::float8
            ) * interval '1 millisecond'
      )
      and exists (
          select
          from reltask.jobs as job
          where job.limit_key = waiting.key and job.due_at <= parameters.now
            and job.locked_by is null and job.paused_at is null and job.dead_at is null
            and job.limit_key is not null
      )
    limit :limit::integer
),

marked as (
    insert into reltask.marks (task, at, kind, name)
    select 'limit', parameters.now, 'limit', healed.key
    from (
        select key from stranded
        union
        select key from counted
    ) as healed
    cross join parameters
    returning name
)

select (select count(*) from marked) + (select count(*) from added);
