-- A sample: one recurring job of the task "SampleTask", every ten minutes, due at once, with a lock
-- timeout of two minutes. It can be run again without effect. A worker claims the job if its app
-- has a task of that name, as the sample app has:
--
--     reltask worker reltask.sample:app

insert into reltask.jobs (id, task, schedule, lock_timeout_ms, next_run_time)
values (
    '00000000-0000-7000-8000-000000000001',
    'SampleTask',
    '{"every":"10m","missed_grace":"1m"}',
    120000,
    clock_timestamp()
)
on conflict do nothing;
