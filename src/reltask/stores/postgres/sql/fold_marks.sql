-- Purpose       Look at the jobs that marks name: count that something came, and make those due
--               that wait for it.
-- Precondition  The mark's time has come. Its job is in the mark's slot, and is still as it is in
--               this statement's snapshot: same claim, same suspension. A mark whose job has gone,
--               or is in a later slot, is only removed.
-- Lock order    Rows of jobs, then their marks; locked ones are skipped. A mark of a skipped job
--               stays for the next call. Then steps, which only a session that is none of ours can
--               have locked: waits :patience for them, then fails (55P03).
-- Returns       One row: the number of removed marks.
-- Parameters    :patience is a length for lock_timeout.
-- See           SQL.md: nullable now, materialized CTE, skip locked, primary-key lookup, mark, lock
--               timeout.
--
-- Steps are read in the snapshot, the job's row under its lock. If the job were suspended between
-- the two, its row would say that it waits, and the snapshot would not have the step that says for
-- what: it would sleep on with its signal queued. So the locked row must have the fence and the
-- suspension of the snapshot. While both are equal, no step was recorded that matters: recording
-- needs a claim, and a claimed job is not made due here. It learns of the mark by wake_seq.
--
-- The children that a step waits for are counted down in the row itself: an UPDATE reads its newest
-- version. "Is no sibling left?" would be answered with no for each of two children that end at
-- once. Only statements that hold the job's lock write its steps, so this never waits either.
--
-- Only a suspended job becomes due. The time of a backoff, a snooze or a delay is never touched.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now,
           set_config(
               'lock_timeout', coalesce(:patience::text, current_setting('lock_timeout')), true
           ) as lock_timeout
),

taken as materialized (
    select mark.at, mark.seq, mark.kind, mark.job_id, mark.slot_no, mark.name,
           held.id is not null as is_held
    from reltask.marks as mark
    left join reltask.jobs as seen on seen.id = any (array[mark.job_id])
    left join lateral (
        select job.id
        from reltask.jobs as job
        where job.id = mark.job_id and job.slot_no = mark.slot_no
          and job.fence = seen.fence and job.suspended = seen.suspended
        for update of job skip locked
    ) as held on true
    where mark.queue = '' and mark.task = '' and mark.at <= (select now from parameters)
      and (held.id is not null or seen.id is null or seen.slot_no > mark.slot_no)
    order by mark.at, mark.seq
    limit :limit::integer
    for update of mark skip locked
),

removed as (
    delete from reltask.marks as mark
    using taken
    where mark.queue = '' and mark.task = ''
      and mark.at = any (array[taken.at]) and mark.seq = taken.seq
    returning 1
),

fewer as (
    update reltask.steps as step
    set pending = step.pending - ended.children
    from (
        select job_id, slot_no, name, count(*)::integer as children
        from taken
        where is_held and kind = 'child'
        group by job_id, slot_no, name
    ) as ended
    where step.job_id = any (array[ended.job_id]) and step.slot_no = ended.slot_no
      and step.name = ended.name and step.state = 'waiting'
    returning step.job_id, step.pending
),

wakes as (
    select job_id, false as is_due
    from taken
    where is_held
    union all
    select job_id, true
    from fewer
    where pending <= 0
    union all
    select taken.job_id, true
    from taken
    join reltask.steps as step
        on step.job_id = any (array[taken.job_id]) and step.slot_no = taken.slot_no
        and step.state = 'waiting' and step.signal = taken.name
    where taken.is_held and taken.kind = 'signal'
),

folded as (
    update reltask.jobs as job
    set wake_seq = job.wake_seq + 1,
        not_before = case when job.suspended and woken.is_due
                          then least(job.due_at, parameters.now)
                          else job.not_before end
    from (select job_id, bool_or(is_due) as is_due from wakes group by job_id) as woken
    cross join parameters
    where job.id = any (array[woken.job_id])
)

select count(*) from removed;
