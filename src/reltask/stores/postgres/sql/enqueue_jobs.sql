-- Purpose       insert jobs, and say which ids are in the database: inserted now, or known from before.
-- Precondition  neither the table nor the ledger knows the id, and no row has its (task, key); others are left out.
-- Lock order    by name, then by id, so that two batches cannot wait for each other in a circle: neither one batch sent
--               twice, nor two that bring the same (task, key) under ids of their own, as workers do that start together.
--
-- The ids are the client's. When an answer was lost the same statement is sent again: it inserts nothing twice, and
-- "known from before" then means that the first sending had worked. A row that is there is not inserted over, although
-- the conflict would see to it: its run may be ending now, and then the conflict goes away while this statement, which
-- cannot see the ledger row that takes its place, waits for it. That goes for the first sending, too: it may arrive last.
--
-- What is known is looked up for all ids at once; joined to a table that the planner believes to be empty, each id would
-- be searched for in all of it.
--
-- A delay is so many seconds: as days it would be added to the date in the session's time zone, and be an hour off when
-- its clocks change.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

given as materialized (
    select *
    from unnest(
        :ids::uuid[], :tasks::text[], :keys::text[], :queues::text[], :priorities::smallint[], :args::text[],
        :schedules::text[], :declarations::text[], :app_versions::text[], :max_attempts::integer[],
        :lock_timeouts_ms::bigint[], :run_ats::timestamptz[], :delays::interval[]
    ) as job (
        id, task, key, queue, priority, args, schedule, declaration, app_version, max_attempts,
        lock_timeout_ms, run_at, delay)
),

known as materialized (
    select id from reltask.jobs where id = any (:ids::uuid[])
    union all
    select job_id from reltask.runs where job_id = any (:ids::uuid[])
),

inserted as (
    insert into reltask.jobs (
        id, task, key, queue, priority, args, schedule, declaration, app_version, max_attempts,
        lock_timeout_ms, created_at, next_run_time)
    select given.id, given.task, given.key, given.queue, given.priority, given.args::json, given.schedule,
           given.declaration, given.app_version, given.max_attempts, given.lock_timeout_ms, parameters.now,
           coalesce(given.run_at, parameters.now + coalesce(extract(epoch from given.delay), 0) * interval '1 second')
    from given
    cross join parameters
    where not exists (select from known where known.id = given.id)
    order by given.task, coalesce(given.key, ''), given.id
    on conflict do nothing
    returning id
)

select inserted.id, true as inserted
from inserted
union all
select known.id, false
from known;
