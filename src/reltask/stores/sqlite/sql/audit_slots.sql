-- Purpose       find breaks in the histories of jobs: one row per finding; a sound database answers with none.
-- Precondition  none; each ledger row is read once, in the order of its primary key.
-- Lock order    none: reads the last committed state.
-- Parameters    :task null for all tasks; :kept_for in microseconds, history younger than that is never pruned; :limit;
--               :now in microseconds since 1970.
--
-- Read by fence, each ledger row of a job follows from the one before: its fence is one higher; its slot is the same
-- if the run before left it open, and the next if the run before ended it. After the newest ledger row stands the
-- job's row, for which the same holds. A job without a row has ended: its only slot is done, or it was discarded.
--
--     ledger    fence 1  slot 1  failed
--               fence 2  slot 1  succeeded     ends slot 1
--               fence 4  slot 3  succeeded     run-missing 3 to 3, slot-lost 2 to 2
--     row       fence 4  slot 4                the next fence would be 5: sound
--
-- Old history may have been pruned, so it may start anywhere; that of a job younger than :kept_for starts with 1.

with
history as (
    select job_id, fence, slot_no, task, key, outcome,
           slot_no + (outcome in ('succeeded', 'cancelled', 'skipped', 'discarded')) as slot_after
      from reltask_runs
),

steps as (
    select job_id, fence, slot_no, task, key, outcome, slot_after,
           lag(fence) over by_fence + 1       as fence_due,
           lag(slot_after) over by_fence      as slot_due,
           lead(fence) over by_fence is null  as newest,
           first_value(slot_no) over by_fence as starts_at
      from history
    window by_fence as (partition by job_id order by fence)
),

-- Only the newest step of a job looks for its row.
checked as (
    select steps.*,
           jobs.fence + (jobs.locked_by is null) as row_fence,
           jobs.slot_no as row_slot,
           steps.newest and jobs.id is null
               and (steps.slot_after = steps.slot_no or (steps.slot_no > 1 and steps.outcome <> 'discarded'))
               as vanished
      from steps
      left join reltask_jobs as jobs on jobs.id = case when steps.newest then steps.job_id end
),

broken as materialized (
    select *
      from checked
     where fence <> fence_due or slot_no <> slot_due or row_fence <> fence + 1 or row_slot <> slot_after or vanished
),

-- What was due, and what is there instead.
links (job_id, task, key, starts_at, fence_due, slot_due, fence, slot_no) as materialized (
    select job_id, task, key, starts_at, fence_due, slot_due, fence, slot_no
      from broken
    union all
    select job_id, task, key, starts_at, fence + 1, slot_after, row_fence, row_slot
      from broken
    union all
    -- neither current in a row, nor ended in the ledger
    select job_id, task, key, starts_at, null, slot_after, null, slot_after + 1
      from broken
     where vanished
    union all
    -- jobs too young to have been pruned
    select jobs.id, jobs.task, jobs.key, coalesce(oldest.slot_no, jobs.slot_no), 1, 1,
           coalesce(oldest.fence, jobs.fence + (jobs.locked_by is null)),
           coalesce(oldest.slot_no, jobs.slot_no)
      from reltask_jobs as jobs
      left join reltask_runs as oldest
        on oldest.job_id = jobs.id
       and oldest.fence = (select min(fence) from reltask_runs where job_id = jobs.id)
     where jobs.created_at > :now - :kept_for
    union all
    -- a slot that ended too lately to have been pruned, and no ledger row at all
    select id, task, key, slot_no, null, slot_no - 1, null, slot_no
      from reltask_jobs
     where created_at <= :now - :kept_for
       and last_run_time > :now - :kept_for
       and not exists (select 1 from reltask_runs where job_id = reltask_jobs.id)
),

twice as materialized (
    select job_id, slot_no, min(task) as task, min(key) as key
      from reltask_runs
     where outcome in ('succeeded', 'cancelled', 'skipped', 'discarded')
     group by job_id, slot_no
    having count(*) > 1
),

findings as (
    select 'slot-twice' as kind, job_id, task, key, slot_no as first_no, slot_no as last_no, null as starts_at
      from twice
    union all
    select 'slot-lost', job_id, task, key, slot_due, slot_no - 1, starts_at
      from links
     where slot_no > slot_due
    union all
    select 'slot-reopened', job_id, task, key, slot_no, slot_no, starts_at
      from links
     where slot_no < slot_due
       and (job_id, slot_no) not in (select job_id, slot_no from twice)
    union all
    select 'run-missing', job_id, task, key, fence_due, fence - 1, starts_at
      from links
     where fence > fence_due
    union all
    select 'fence-behind', job_id, task, key, fence, fence, starts_at
      from links
     where fence < fence_due
)

select kind, job_id, task, key, first_no, last_no, starts_at
  from findings
 where :task is null or task = :task
 order by task, job_id, first_no, kind
 limit :limit;
