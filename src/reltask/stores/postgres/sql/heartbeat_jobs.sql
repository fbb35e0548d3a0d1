-- Purpose       renew the claims of one worker, keep its own row alive, and name the rows of claims that it lost sight of.
-- Precondition  id, owner and fence of each claim still match.
-- Lock order    ids ascending, and rows that somebody holds are skipped: a heartbeat never waits. A row missing from
--               the answer is therefore suspect, not lost; read_holds decides.
--
-- Each row is found by its id: "is not distinct from" keeps the planner from walking all that is held.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

given as materialized (
    select pair.id, pair.fence
    from unnest(:ids::uuid[], :fences::bigint[]) as pair (id, fence)
),

held as materialized (
    select job.id
    from (select * from given order by id) as pair
    cross join lateral (
        select id
        from reltask.jobs
        where id = pair.id and fence = pair.fence and locked_by is not distinct from :worker::text
        for update skip locked
    ) as job
),

renewed as (
    update reltask.jobs as job
    set heartbeat_at = parameters.now,
        lock_expires_at = parameters.now + job.claim_timeout_ms * interval '1 millisecond',
        -- unchanged, but named: due_at depends on it, and PostgreSQL would read its definition anew for every row
        not_before = job.not_before
    from parameters
    where job.id = any (array(select id from held))
    returning job.id, job.fence
),

alive as (
    update reltask.workers as worker
    set heartbeat_at = parameters.now, alive_until = parameters.now + :alive_for::interval, dead_at = null
    from parameters
    where worker.id = (select me.id from reltask.workers as me where me.id = :worker::text for update skip locked)
)

select renewed.id, renewed.fence, false as stray
from renewed
union all
-- Looks through all that is held, but only when there is a claim whose answer was lost.
select job.id, job.fence, true
from reltask.jobs as job
where cardinality(:tokens::uuid[]) > 0
  and job.locked_by = :worker::text and job.claim_token = any (:tokens::uuid[]);
