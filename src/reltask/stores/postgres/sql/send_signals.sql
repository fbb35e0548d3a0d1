-- Purpose       Store signals for jobs, with a mark each that makes a worker look at the job.
-- Precondition  The job's row exists: by id, or else by task and key. The slot does not have a
--               signal of this name and id yet.
-- Lock order    The inserted rows, as given. The jobs are read, never locked: in the sender's
--               own transaction such a lock would keep heartbeats and settlements from the row for
--               as long as that transaction is open.
-- Returns       One row per signal whose job exists, stored now or before: its id, the job's id.
-- See           SQL.md: nullable now, materialized CTE, primary-key lookup, filtered index, mark.
--
-- A signal that meets the end of its job's slot may be stored for a slot that is over. No run reads
-- it, and prune_records.sql removes it.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

found as materialized (
    select given.id, given.name, given.value, given.nth, job.id as job_id, job.slot_no
    from unnest(
        :ids::text[], :names::text[], :values::text[], :job_ids::uuid[], :tasks::text[],
        :keys::text[]
    ) with ordinality as given (id, name, value, job_id, task, key, nth)
    cross join lateral (
        select job.id, job.slot_no
        from reltask.jobs as job
        where job.id = given.job_id
        union all
        select job.id, job.slot_no
        from reltask.jobs as job
        where given.job_id is null
          and job.task = given.task and coalesce(job.key, '') = coalesce(given.key, '')
          and (job.schedule is not null or job.key is not null)
        limit 1
    ) as job
),

stored as (
    insert into reltask.signals (job_id, slot_no, name, id, value, sent_at)
    select found.job_id, found.slot_no, found.name, found.id, found.value::json, parameters.now
    from found
    cross join parameters
    -- the order in which they are consumed
    order by found.nth
    on conflict do nothing
    returning job_id, slot_no, name
),

marked as (
    insert into reltask.marks (at, kind, job_id, slot_no, name)
    select parameters.now, 'signal', stored.job_id, stored.slot_no, stored.name
    from stored
    cross join parameters
)

select id, job_id
from found;
