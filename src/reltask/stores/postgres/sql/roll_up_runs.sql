-- Purpose       Count the ledger by minute and task, for the minutes that may have changed.
-- Precondition  If a term is given, the lease is still held under it.
-- Lock order    The lease's row in share mode, then metrics by minute and task.
-- Returns       One row: the number of minutes written.
-- See           SQL.md: nullable now, materialized CTE, leader check, exact types.
--
--     newest counted minute - 2     counted again, because a commit may have come late
--     …
--     first uncounted run           ten minutes from its own on; the rest at the next call
--
-- Nothing older than about an hour is counted again: rows of that age may have been pruned, and the
-- counts would shrink. A minute whose counts have not changed is not written.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

leader as materialized (
    select lease.name
    from reltask.leases as lease
    where lease.name = :lease::text and lease.term = :term::bigint and lease.holder is not null
    for key share
),

newest as materialized (
    select max(metric.minute) as minute
    from reltask.metrics as metric
),

recount as materialized (
    select greatest(
        newest.minute - interval '2 minutes',
        date_trunc('minute', parameters.now - interval '1 hour', 'UTC') + interval '2 minutes'
    ) as since
    from newest
    cross join parameters
),

span as materialized (
    select recount.since,
           date_trunc('minute', coalesce(uncounted.finished_at, parameters.now), 'UTC')
               + interval '10 minutes' as until
    from recount
    cross join newest
    cross join parameters
    left join lateral (
        select run.finished_at
        from reltask.runs as run
        where run.finished_at >= greatest(recount.since, newest.minute + interval '1 minute')
          and run.outcome in ('succeeded', 'failed', 'lost', 'abandoned')
          and run.claimed_at is not null
        order by run.finished_at
        limit 1
    ) as uncounted on true
),

counted as materialized (
    select date_trunc('minute', run.finished_at, 'UTC') as minute,
           run.task,
           count(*) filter (where run.outcome = 'succeeded') as succeeded,
           count(*) filter (where run.outcome <> 'succeeded') as failed,
           sum(length.seconds) as seconds,
           max(length.seconds) as seconds_most,
           sum(length.late) as late,
           max(length.late) as late_most
    from reltask.runs as run
    cross join lateral (
        select greatest(extract(epoch from run.finished_at - run.claimed_at), 0)::double precision
                   as seconds,
               greatest(
                   extract(epoch from run.claimed_at - nullif(run.due_at, '-infinity')), 0
               )::double precision
                   as late
    ) as length
    where (:term::bigint is null or exists (select from leader))
      and run.finished_at >= (select since from span) and run.finished_at < (select until from span)
      and run.outcome in ('succeeded', 'failed', 'lost', 'abandoned') and run.claimed_at is not null
    group by 1, 2
),

written as (
    insert into reltask.metrics as metric (
        minute, task, succeeded, failed, seconds, seconds_most, late, late_most
    )
    select minute, task, succeeded, failed, seconds, seconds_most, late, late_most
    from counted
    order by minute, task
    on conflict (minute, task) do update
    set succeeded = excluded.succeeded,
        failed = excluded.failed,
        seconds = excluded.seconds,
        seconds_most = excluded.seconds_most,
        late = excluded.late,
        late_most = excluded.late_most
    where metric.succeeded <> excluded.succeeded or metric.failed <> excluded.failed
    returning metric.minute
)

select pg_catalog.count(distinct minute) as minutes from written;
