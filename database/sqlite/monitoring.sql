-- Queries for a dashboard or an alert. They only read.

-- 1. The leaders: how long each has held its lease, and when it last sent a heartbeat. The leader
--    is null if the lease is not held.
with
clock (now) as (
    select cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000
)

select leases.name,
       case when leases.holder is not null and leases.expires_at > clock.now
            then leases.holder end as leader,
       leases.term,
       (clock.now - leases.acquired_at) / 1e6 as held_for,
       (clock.now - leases.heartbeat_at) / 1e6 as last_beat,
       (leases.expires_at - clock.now) / 1e6 as time_left,
       json_extract(leases.metadata, '$.last_run') as last_run,
       json_extract(leases.metadata, '$.items') as items,
       json_extract(leases.metadata, '$.errors') as errors,
       (
           select count(*)
           from reltask_lease_waiters as waiters
           where waiters.name = leases.name and waiters.waiting_until > clock.now
       ) as waiting
from reltask_leases as leases
join clock
order by leases.name;

-- 2. Stuck leaders: a heartbeat within the last 30 seconds, leader for more than 5 minutes, and no
--    work finished for 5 minutes. Only those that publish when they last did. Any row is an alert:
--    `reltask leases release NAME` takes the lease away.
with
clock (now) as (
    select cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000
),

led (name, holder, term, acquired_at, heartbeat_at, last_run) as (
    select name, holder, term, acquired_at, heartbeat_at,
           cast(
               round((julianday(json_extract(metadata, '$.last_run')) - 2440587.5) * 86400000)
               as integer
           ) * 1000
    from reltask_leases
    where holder is not null
)

select led.name, led.holder, led.term,
       datetime(led.acquired_at / 1e6, 'unixepoch') as acquired_at,
       datetime(led.heartbeat_at / 1e6, 'unixepoch') as heartbeat_at,
       datetime(led.last_run / 1e6, 'unixepoch') as last_run
from led
join clock
where led.heartbeat_at > clock.now - 30 * 1000000
  and led.acquired_at < clock.now - 300 * 1000000
  and (led.name = 'reltask:maintenance' or led.last_run is not null)
  and coalesce(led.last_run, led.acquired_at) < clock.now - 300 * 1000000
order by led.name;

-- 3. Leases that candidates wait for, and that have not been held for more than a minute.
with
clock (now) as (
    select cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000
)

select leases.name, leases.term, datetime(leases.expires_at / 1e6, 'unixepoch') as expires_at
from reltask_leases as leases
join clock
where leases.expires_at < clock.now - 60 * 1000000
  and exists (
      select 1
      from reltask_lease_waiters as waiters
      where waiters.name = leases.name and waiters.waiting_until > clock.now
  )
order by leases.name;

-- 4. Dead workers: alive_until has passed without a shutdown.
with
clock (now) as (
    select cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000
)

select workers.id, workers.host, workers.pid,
       datetime(workers.heartbeat_at / 1e6, 'unixepoch') as heartbeat_at,
       datetime(workers.dead_at / 1e6, 'unixepoch') as dead_at,
       (select count(*) from reltask_jobs where locked_by = workers.id) as still_claimed
from reltask_workers as workers
join clock
where workers.stopped_at is null
  and (workers.dead_at is not null or workers.alive_until < clock.now)
order by workers.heartbeat_at;

-- 5. The last hour by task: runs, failures in percent, mean duration and mean lateness in seconds.
with
clock (now) as (
    select cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000
)

select task,
       sum(succeeded + failed) as runs,
       round(100.0 * sum(failed) / sum(succeeded + failed), 1) as failed_percent,
       sum(seconds) / sum(succeeded + failed) as mean_seconds,
       sum(late) / sum(succeeded + failed) as mean_late
from reltask_metrics
join clock
where minute > clock.now - 3600 * 1000000
group by task
order by task;

-- 6. Durable functions that wait, by task, and the next time at which one goes on by itself. In
--    the year 8999: only a signal or the end of its children wakes it.
select task,
       count(*) as suspended,
       datetime(min(due_at) / 1e6, 'unixepoch') as next_wake
from reltask_jobs
where suspended and locked_by is null and dead_at is null
group by task
order by task;

-- 7. Marks that no worker has folded for more than a minute, by job. Any row is an alert: no worker
--    runs.
with
clock (now) as (
    select cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000
)

select marks.job_id, count(*) as marks, datetime(min(marks.at) / 1e6, 'unixepoch') as oldest
from reltask_marks as marks
join clock
where marks.at < clock.now - 60 * 1000000
group by marks.job_id
order by min(marks.at);

-- 8. Signals that no step has consumed for more than a day: their name may be wrong, or the
--    function does not come to its wait.
with
clock (now) as (
    select cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000
)

select signals.job_id, jobs.task, jobs.key, signals.name, count(*) as signals,
       datetime(min(signals.sent_at) / 1e6, 'unixepoch') as oldest
from reltask_signals as signals
join clock
join reltask_jobs as jobs on jobs.id = signals.job_id and jobs.slot_no = signals.slot_no
where signals.consumed_by is null
  and signals.sent_at < clock.now - 86400 * 1000000
group by signals.job_id, jobs.task, jobs.key, signals.name
order by min(signals.sent_at);
