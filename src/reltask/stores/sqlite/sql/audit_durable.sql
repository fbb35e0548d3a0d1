-- Purpose       Find contradictions in what durable functions have recorded, and suspended jobs
--               that nothing will wake.
-- Precondition  None. Reads the steps, signals and children of a slice once, in one snapshot.
-- Lock order    Locks nothing.
-- Returns       One row per finding; none if the records are sound.
-- Parameters    As of audit_slots.sql.
-- See           SQL.md: mark.
--
--     step-stray           a step of a slot that never existed, or written after the slot's end
--     steps-miscounted     the job's row has another number of steps than there are
--     signal-lost          consumed by a step that has not recorded it
--     signal-twice         a step has consumed several signals
--     children-miscounted  a step does not wait for as many children as there are, those included
--                          whose end has left a mark that is not folded yet
--     never-wakes          suspended and not due, and each of its waiting steps has what it waits
--                          for, or will never get it
--
-- A body may cancel a wait, and its step waits for ever; so the job must have one step left that
-- can wake it, not all of them. A job with a mark is going to be looked at.

with
stray as (
    select distinct step.job_id, step.slot_no, step.name
    from reltask_steps as step
    left join reltask_jobs as job on job.id = step.job_id
    left join reltask_runs as ended
        on ended.job_id = step.job_id and ended.slot_no = step.slot_no
        and ended.outcome in ('succeeded', 'cancelled', 'skipped', 'discarded')
    where step.job_id > :after and step.job_id <= :upto
      and case when step.slot_no = job.slot_no then step.fence > job.fence
               when step.slot_no > job.slot_no then 1
               when ended.fence is not null then step.fence > ended.fence
               else step.recorded_at > :now - :kept_for end
),

miscounted as (
    select job.id as job_id, job.slot_no
    from reltask_jobs as job
    where job.id > :after and job.id <= :upto
      and job.steps <> (
          select count(*) from reltask_steps where job_id = job.id and slot_no = job.slot_no
      )
),

-- Of slots that are current, or have an end in the ledger: others may be half pruned.
consumed as materialized (
    select signal.job_id, signal.slot_no, signal.name, signal.consumed_by
    from reltask_signals as signal
    where signal.job_id > :after and signal.job_id <= :upto
      and signal.consumed_by is not null
      and (
          exists (
              select 1
              from reltask_jobs as job
              where job.id = signal.job_id and job.slot_no = signal.slot_no
          )
          or exists (
              select 1
              from reltask_runs as ended
              where ended.job_id = signal.job_id and ended.slot_no = signal.slot_no
                and ended.outcome in ('succeeded', 'cancelled', 'skipped', 'discarded')
                and ended.steps is not null
          )
      )
),

-- A step that has ended may have marks left that are not folded yet, and must have no child left.
family as (
    select part.job_id, part.slot_no, part.name
    from (
        select job_id, slot_no, name, 1 as waits, pending, 0 as children, 0 as marks
        from reltask_steps
        where job_id > :after and job_id <= :upto
          and kind = 'run' and state = 'waiting'
        union all
        select parent_id, parent_slot, parent_step, 0, 0, 1, 0
        from reltask_jobs
        where parent_id > :after and parent_id <= :upto
        union all
        select job_id, slot_no, name, 0, 0, 0, 1
        from reltask_marks
        where job_id > :after and job_id <= :upto
          and kind = 'child'
    ) as part
    join reltask_jobs as job on job.id = part.job_id and job.slot_no = part.slot_no
    group by part.job_id, part.slot_no, part.name
    having case when max(part.waits) = 1
                then sum(part.pending) <> sum(part.children) + sum(part.marks)
                else sum(part.children) > 0 end
),

-- The steps that can still wake their job.
hopeful as materialized (
    select step.job_id, step.slot_no
    from reltask_steps as step
    where step.job_id > :after and step.job_id <= :upto
      and step.state = 'waiting'
      and (step.wake_at is null or step.wake_at > :now)
      and not exists (
          select 1
          from reltask_signals as signal
          where signal.job_id = step.job_id and signal.slot_no = step.slot_no
            and signal.name = step.signal and signal.consumed_by is null
      )
      and (
          step.kind <> 'run'
          or exists (
              select 1
              from reltask_jobs as child
              where child.parent_id = step.job_id and child.parent_slot = step.slot_no
                and child.parent_step = step.name
          )
      )
),

asleep as (
    select job.id as job_id, job.slot_no
    from reltask_jobs as job
    where job.id > :after and job.id <= :upto
      and job.suspended and job.due_at > :now
      and job.id not in (select job_id from reltask_marks where kind <> 'limit')
      and (job.id, job.slot_no) not in (select job_id, slot_no from hopeful)
),

findings as (
    select 'step-stray' as kind, job_id, slot_no, name
    from stray
    union all
    select 'steps-miscounted', job_id, slot_no, null
    from miscounted
    union all
    select 'signal-lost', consumed.job_id, consumed.slot_no, consumed.name
    from consumed
    where not exists (
        select 1
        from reltask_steps as step
        where step.job_id = consumed.job_id and step.slot_no = consumed.slot_no
          and step.name = consumed.consumed_by and step.signal = consumed.name
          and step.state = 'done'
    )
    union all
    select 'signal-twice', job_id, slot_no, consumed_by
    from consumed
    group by job_id, slot_no, consumed_by
    having count(*) > 1
    union all
    select 'children-miscounted', job_id, slot_no, name
    from family
    union all
    select 'never-wakes', job_id, slot_no, null
    from asleep
),

-- A job whose row has gone is named by its history.
named as (
    select findings.*, coalesce(job.task, run.task, '?') as task, coalesce(job.key, run.key) as key,
           run.slot_no as starts_at
    from findings
    left join reltask_jobs as job on job.id = findings.job_id
    left join reltask_runs as run
        on run.job_id = findings.job_id
        and run.fence = (select min(fence) from reltask_runs where job_id = findings.job_id)
)

select kind, job_id, task, key, slot_no as first_no, slot_no as last_no, starts_at, name
from named
where :task is null or task = :task
order by task, job_id, slot_no, kind, name
limit :limit;
