-- Purpose       Declare a limit, or change one that is declared, and look at the jobs that wait for
--               it.
-- Precondition  There is no limit of this name and :seen is null, or its declaration is :seen.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       Statement 2: one row with the name, if it was written.
-- See           SQL.md: one writer, limit.
--
-- The marks come first, because the limit says afterwards that it has been written. The recursion
-- goes from one key with unclaimed jobs to the next with one index seek each.

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
where waiting.key is not null
  and substr(waiting.key, 1, instr(waiting.key || ':', ':') - 1) = :name
  and not exists (
      select 1 from reltask_limits where name = :name and declaration is not :seen
  );

insert into reltask_limits (
    name, running, rate_count, rate_period_ms, burst, declaration, app_version, changed_at
)
values (
    :name, :running, :rate_count, :rate_period_ms, :burst, :declaration, :app_version, :now
)
on conflict (name) do update
set running = excluded.running,
    rate_count = excluded.rate_count,
    rate_period_ms = excluded.rate_period_ms,
    burst = excluded.burst,
    declaration = excluded.declaration,
    app_version = excluded.app_version,
    changed_at = excluded.changed_at
where declaration = :seen
returning name;
