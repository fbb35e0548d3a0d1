-- Purpose       Count the ledger by minute and task, for the minutes that may have changed.
-- Precondition  If a term is given, the lease is still held under it.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row per metric written: its minute.
-- See           SQL.md: one writer, leader check.
--
--     newest counted minute - 2     counted again, because a commit may have come late
--     …
--     first uncounted run           ten minutes from its own on; the rest at the next call
--
-- Nothing older than about an hour is counted again: rows of that age may have been pruned, and the
-- counts would shrink. A minute whose counts have not changed is not written.

with
newest (minute) as (
    select max(minute)
    from reltask_metrics
),

recount (since) as (
    select max(
        coalesce(minute - 2 * 60000000, 0),
        (:now - 3600000000) / 60000000 * 60000000 + 2 * 60000000
    )
    from newest
),

span (since, until) as (
    select recount.since,
           coalesce(
               (
                   select min(finished_at)
                   from reltask_runs
                   where finished_at >= max(recount.since, coalesce(newest.minute + 60000000, 0))
                     and outcome in ('succeeded', 'failed', 'lost', 'abandoned')
                     and claimed_at is not null
               ),
               :now
           ) / 60000000 * 60000000 + 10 * 60000000
    from recount
    cross join newest
)

insert into reltask_metrics as metric (
    minute, task, succeeded, failed, seconds, seconds_most, late, late_most
)
select runs.finished_at / 60000000 * 60000000 as minute,
       runs.task,
       sum(runs.outcome = 'succeeded'),
       sum(runs.outcome <> 'succeeded'),
       sum(max(runs.finished_at - runs.claimed_at, 0)) / 1e6,
       max(max(runs.finished_at - runs.claimed_at, 0)) / 1e6,
       sum(max(runs.claimed_at - runs.due_at, 0)) / 1e6,
       max(max(runs.claimed_at - runs.due_at, 0)) / 1e6
from span
join reltask_runs as runs on runs.finished_at >= span.since and runs.finished_at < span.until
where runs.outcome in ('succeeded', 'failed', 'lost', 'abandoned')
  and runs.claimed_at is not null
  and (
      :term is null
      or exists (
          select 1
          from reltask_leases
          where name = :lease and term = :term and holder is not null
      )
  )
group by 1, 2
on conflict (minute, task) do update
set succeeded = excluded.succeeded,
    failed = excluded.failed,
    seconds = excluded.seconds,
    seconds_most = excluded.seconds_most,
    late = excluded.late,
    late_most = excluded.late_most
where metric.succeeded <> excluded.succeeded or metric.failed <> excluded.failed
returning minute;
