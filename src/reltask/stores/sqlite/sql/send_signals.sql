-- Purpose       Store signals for jobs, with a mark for each that is new.
-- Precondition  The job exists: it has this id, or else this task and key. A signal whose id the
--               job's slot has already is not stored again.
-- Lock order    SQLite's write lock, held for the whole transaction. No job is written: a sender
--               may keep its transaction open.
-- Returns       Statement 3: one row per signal that has a job: id, job_id.
-- See           SQL.md: one writer, JSON batch, mark.

-- The marks come first, because the stored signals tell which have one.
with
batch as (
    select json_extract(value, '$.id') as id,
           json_extract(value, '$.name') as name,
           json_extract(value, '$.value') as value,
           json_extract(value, '$.job_id') as job_id,
           json_extract(value, '$.task') as task,
           json_extract(value, '$.key') as key,
           key as place
    from json_each(:signals)
),

sent as (
    select batch.id, batch.name, batch.value, batch.place, jobs.id as job_id, jobs.slot_no
    from batch
    join reltask_jobs as jobs on jobs.id = batch.job_id
    union all
    select batch.id, batch.name, batch.value, batch.place, jobs.id, jobs.slot_no
    from batch
    join reltask_jobs as jobs
        on jobs.task = batch.task
        and coalesce(jobs.key, '') = coalesce(batch.key, '')
    where batch.job_id is null
      and (jobs.schedule is not null or jobs.key is not null)
)

insert into reltask_marks (at, kind, job_id, slot_no, name)
select distinct :now, 'signal', job_id, slot_no, name
from sent
where not exists (
    select 1
    from reltask_signals as known
    where known.job_id = sent.job_id and known.slot_no = sent.slot_no
      and known.name = sent.name and known.id = sent.id
);

with
batch as (
    select json_extract(value, '$.id') as id,
           json_extract(value, '$.name') as name,
           json_extract(value, '$.value') as value,
           json_extract(value, '$.job_id') as job_id,
           json_extract(value, '$.task') as task,
           json_extract(value, '$.key') as key,
           key as place
    from json_each(:signals)
),

sent as (
    select batch.id, batch.name, batch.value, batch.place, jobs.id as job_id, jobs.slot_no
    from batch
    join reltask_jobs as jobs on jobs.id = batch.job_id
    union all
    select batch.id, batch.name, batch.value, batch.place, jobs.id, jobs.slot_no
    from batch
    join reltask_jobs as jobs
        on jobs.task = batch.task
        and coalesce(jobs.key, '') = coalesce(batch.key, '')
    where batch.job_id is null
      and (jobs.schedule is not null or jobs.key is not null)
)

insert into reltask_signals (job_id, slot_no, name, id, value, sent_at)
select job_id, slot_no, name, id, value, :now
from sent
where true
order by place
on conflict do nothing;

with
batch as (
    select json_extract(value, '$.id') as id,
           json_extract(value, '$.name') as name,
           json_extract(value, '$.value') as value,
           json_extract(value, '$.job_id') as job_id,
           json_extract(value, '$.task') as task,
           json_extract(value, '$.key') as key,
           key as place
    from json_each(:signals)
),

sent as (
    select batch.id, batch.name, batch.value, batch.place, jobs.id as job_id, jobs.slot_no
    from batch
    join reltask_jobs as jobs on jobs.id = batch.job_id
    union all
    select batch.id, batch.name, batch.value, batch.place, jobs.id, jobs.slot_no
    from batch
    join reltask_jobs as jobs
        on jobs.task = batch.task
        and coalesce(jobs.key, '') = coalesce(batch.key, '')
    where batch.job_id is null
      and (jobs.schedule is not null or jobs.key is not null)
)

select id, job_id
from sent;
