-- Purpose       Remove a step's record, so that the function runs it again; with :and_after also
--               those that were started after it.
-- Precondition  The job is unclaimed, and was so in this statement's snapshot under the same fence:
--               a run in between may have recorded steps that the snapshot does not have. No child
--               of the steps lives.
-- Lock order    The row of the job. Waits for it, then checks it again.
-- Returns       One row: the number of removed steps.
-- See           SQL.md: nullable now, materialized CTE, fence.
--
-- Signals that the steps consumed wait again, and the ends of their children are forgotten, with
-- the marks that they have left. A suspended job becomes due: what it waits for may be another
-- thing now.
--
-- While a child lives, nothing is removed: its end would take the place of the new child's, which
-- would then not be counted.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
),

unclaimed as materialized (
    select job.id, job.slot_no
    from reltask.jobs as seen
    cross join lateral (
        select *
        from reltask.jobs
        where id = seen.id and fence = seen.fence and locked_by is null
        for update
    ) as job
    where seen.id = :id::uuid
),

named as materialized (
    select step.job_id, step.slot_no, step.name
    from unclaimed
    join reltask.steps as step
        on step.job_id = unclaimed.id and step.slot_no = unclaimed.slot_no
    where step.name = :name::text
       or :and_after::boolean and step.started_at > (
           select first.started_at
           from reltask.steps as first
           where first.job_id = unclaimed.id and first.slot_no = unclaimed.slot_no
             and first.name = :name::text
       )
),

removed as (
    delete from reltask.steps as step
    using named
    where step.job_id = named.job_id and step.slot_no = named.slot_no and step.name = named.name
      and not exists (
          select
          from named as parent
          join reltask.jobs as child
              on child.parent_id = parent.job_id and child.parent_slot = parent.slot_no
              and child.parent_step = parent.name
      )
    returning step.job_id, step.slot_no, step.name
),

released as (
    update reltask.signals as signal
    set consumed_by = null
    from removed
    where signal.job_id = removed.job_id and signal.slot_no = removed.slot_no
      and signal.consumed_by = removed.name
),

forgotten as (
    delete from reltask.child_ends as child
    using removed
    where child.parent_id = removed.job_id and child.slot_no = removed.slot_no
      and child.step = removed.name
),

unmarked as (
    delete from reltask.marks as mark
    using removed
    where mark.kind = 'child' and mark.job_id = removed.job_id
      and mark.slot_no = removed.slot_no and mark.name = removed.name
),

woken as (
    update reltask.jobs as job
    set steps = job.steps - gone.steps,
        not_before = case when job.suspended then least(job.due_at, parameters.now)
                          else job.not_before end
    from (select job_id, count(*)::integer as steps from removed group by job_id) as gone
    cross join parameters
    where job.id = gone.job_id
)

select count(*) from removed;
