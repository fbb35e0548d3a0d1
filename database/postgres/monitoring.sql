-- Queries for a dashboard or an alert. They only read; the role reltask_read may run them all.

-- 1. The leaders: how long each has held its lease, and when it last sent a heartbeat. The leader
--    is null if the lease is not held.
select lease.name,
       case when lease.holder is not null and lease.expires_at > statement_timestamp()
            then lease.holder end as leader,
       lease.term,
       statement_timestamp() - lease.acquired_at as held_for,
       statement_timestamp() - lease.heartbeat_at as last_beat,
       lease.expires_at - statement_timestamp() as time_left,
       lease.metadata ->> 'last_run'::text as last_run,
       lease.metadata ->> 'items'::text as items,
       lease.metadata ->> 'errors'::text as errors,
       (
           select count(*)
           from reltask.lease_waiters as waiter
           where waiter.name = lease.name and waiter.waiting_until > statement_timestamp()
       ) as waiting
from reltask.leases as lease
order by lease.name;

-- 2. Stuck leaders: a heartbeat within the last 30 seconds, leader for more than 5 minutes, and no
--    work finished for 5 minutes. Only those that publish when they last did. Any row is an alert:
--    `reltask leases release NAME` takes the lease away.
select lease.name, lease.holder, lease.term, lease.acquired_at, lease.heartbeat_at,
       (lease.metadata ->> 'last_run'::text)::timestamptz as last_run
from reltask.leases as lease
where lease.holder is not null
  and lease.heartbeat_at > statement_timestamp() - interval '30 seconds'
  and lease.acquired_at < statement_timestamp() - interval '5 minutes'
  and (lease.name = 'reltask:maintenance' or lease.metadata ->> 'last_run'::text is not null)
  and coalesce((lease.metadata ->> 'last_run'::text)::timestamptz, lease.acquired_at)
      < statement_timestamp() - interval '5 minutes'
order by lease.name;

-- 3. Leases that candidates wait for, and that have not been held for more than a minute.
select lease.name, lease.term, lease.expires_at
from reltask.leases as lease
where lease.expires_at < statement_timestamp() - interval '1 minute'
  and exists (
      select from reltask.lease_waiters as waiter
      where waiter.name = lease.name and waiter.waiting_until > statement_timestamp()
  )
order by lease.name;

-- 4. Dead workers: alive_until has passed without a shutdown.
select worker.id, worker.host, worker.pid, worker.heartbeat_at, worker.dead_at,
       coalesce(held.jobs, 0) as still_claimed
from reltask.workers as worker
left join (
    select locked_by, count(*) as jobs
    from reltask.jobs
    where locked_by is not null
    group by locked_by
) as held on held.locked_by = worker.id
where worker.stopped_at is null
  and (worker.dead_at is not null or worker.alive_until < statement_timestamp())
order by worker.heartbeat_at;

-- 5. The last hour by task: runs, failures in percent, mean duration and mean lateness in seconds.
select metric.task,
       sum(metric.succeeded + metric.failed) as runs,
       round(100.0 * sum(metric.failed) / sum(metric.succeeded + metric.failed), 1)
           as failed_percent,
       sum(metric.seconds) / sum(metric.succeeded + metric.failed)::float8 as mean_seconds,
       sum(metric.late) / sum(metric.succeeded + metric.failed)::float8 as mean_late
from reltask.metrics as metric
where metric.minute > statement_timestamp() - interval '1 hour'
group by metric.task
order by metric.task;

-- 6. Durable functions that wait, by task, and the next time at which one goes on by itself. In the
--    year 8999: only a signal or the end of its children wakes it.
select job.task,
       count(*) as suspended,
       min(job.due_at) as next_wake
from reltask.jobs as job
where job.suspended and job.locked_by is null and job.dead_at is null
group by job.task
order by job.task;

-- 7. Marks that no worker has folded for more than a minute, by job. Any row is an alert: no worker
--    runs, or a session keeps the job's row locked.
select mark.job_id,
       count(*) as marks,
       min(mark.at) as oldest
from reltask.marks as mark
where mark.at < statement_timestamp() - interval '1 minute'
group by mark.job_id
order by min(mark.at);

-- 8. Signals that no step has consumed for more than a day: their name may be wrong, or the
--    function does not come to its wait.
select signal.job_id, job.task, job.key, signal.name, count(*) as signals,
       min(signal.sent_at) as oldest
from reltask.signals as signal
join reltask.jobs as job on job.id = signal.job_id and job.slot_no = signal.slot_no
where signal.consumed_by is null
  and signal.sent_at < statement_timestamp() - interval '1 day'
group by signal.job_id, job.task, job.key, signal.name
order by min(signal.sent_at);
