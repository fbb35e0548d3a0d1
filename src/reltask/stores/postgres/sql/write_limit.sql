-- Purpose       Declare a limit, or change one that is declared, and look at the jobs that wait for
--               it.
-- Precondition  There is no limit of this name and :seen is null, or its declaration is :seen.
-- Lock order    The limit's row; if it is locked, nothing is written: a worker that starts must not
--               wait for another session. No key is locked: claims read the limit when they begin.
-- Returns       One row with the name, if it was written.
-- See           SQL.md: nullable now, skip locked, limit.
--
-- A claim that has begun goes by the old limit, and may let a job go to wait at a key where this
-- snapshot does not see it. So all keys that have been counted are looked at too.
--
-- The recursion goes from one key with unclaimed jobs to the next with one index seek each.

with recursive
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

free as materialized (
    select name
    from reltask.limits
    where name = :name::text and declaration = :seen::text
    for update skip locked
),

written as (
    insert into reltask.limits as rule (
        name, running, rate_count, rate_period_ms, burst, declaration, app_version, changed_at
    )
    select :name::text, :running::integer, :rate_count::integer, :rate_period_ms::bigint,
           :burst::integer, :declaration::text, :app_version::text, parameters.now
    from parameters
    where :seen::text is null or exists (select from free)
    on conflict (name) do update
    set running = excluded.running,
        rate_count = excluded.rate_count,
        rate_period_ms = excluded.rate_period_ms,
        burst = excluded.burst,
        declaration = excluded.declaration,
        app_version = excluded.app_version,
        changed_at = excluded.changed_at
    where rule.declaration = :seen::text
    returning rule.name
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

marked as (
    insert into reltask.marks (task, at, kind, name)
    select 'limit', parameters.now, 'limit', wanted.key
    from (
        select waiting.key
        from written
        join waiting on split_part(waiting.key, ':', 1) = written.name
        union
        select counter.key
        from written
        join reltask.limit_keys as counter on counter.name = written.name
    ) as wanted
    cross join parameters
)

select name
from written;
