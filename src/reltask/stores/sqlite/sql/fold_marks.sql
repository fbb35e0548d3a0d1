-- Purpose       Look at the jobs that marks name: count the mark, subtract children that have
--               ended, and make a suspended job due that waits for this.
-- Precondition  The job is still in the mark's slot. Otherwise the mark is only removed.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       Statement 3: one row per mark that was removed.
-- See           SQL.md: one writer, filtered index, mark.

with
taken as materialized (
    select marks.seq, marks.kind, marks.job_id, marks.slot_no, marks.name
    from reltask_marks as marks
    where marks.queue = '' and marks.task = '' and marks.at <= :now
    order by marks.at, marks.seq
    limit :limit
),

ended as (
    select taken.job_id, taken.slot_no, taken.name, count(*) as children
    from taken
    where taken.kind = 'child'
    group by taken.job_id, taken.slot_no, taken.name
)

update reltask_steps
set pending = pending - ended.children
from ended
where reltask_steps.job_id = ended.job_id
  and reltask_steps.slot_no = ended.slot_no
  and reltask_steps.name = ended.name
  and reltask_steps.state = 'waiting';

-- A job that is not suspended keeps its due time: it may be running, or wait for something else.
with
taken as materialized (
    select marks.seq, marks.kind, marks.job_id, marks.slot_no, marks.name
    from reltask_marks as marks
    where marks.queue = '' and marks.task = '' and marks.at <= :now
    order by marks.at, marks.seq
    limit :limit
),

marked as (
    select distinct job_id, slot_no
    from taken
),

answered as (
    select taken.job_id
    from taken
    join reltask_steps as steps
        on steps.job_id = taken.job_id
        and steps.slot_no = taken.slot_no
        and steps.signal = taken.name
    where taken.kind = 'signal'
      and steps.state = 'waiting' and steps.signal is not null
    union
    select taken.job_id
    from taken
    join reltask_steps as steps
        on steps.job_id = taken.job_id
        and steps.slot_no = taken.slot_no
        and steps.name = taken.name
    where taken.kind = 'child'
      and steps.state = 'waiting' and steps.pending <= 0
)

update reltask_jobs
set wake_seq = wake_seq + 1,
    not_before = case when suspended and id in (select job_id from answered)
                      then min(due_at, :now)
                      else not_before end
from marked
where reltask_jobs.id = marked.job_id
  and reltask_jobs.slot_no = marked.slot_no;

with
taken as materialized (
    select marks.seq, marks.kind, marks.job_id, marks.slot_no, marks.name
    from reltask_marks as marks
    where marks.queue = '' and marks.task = '' and marks.at <= :now
    order by marks.at, marks.seq
    limit :limit
)

delete from reltask_marks
where seq in (select seq from taken)
returning seq;
