-- Purpose       Read all that may have come for a slot, and the number of marks folded so far.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       Nothing if the job is gone or in another slot. Else first a row with wake_seq; then
--               one row per signal that waits, in the order of arrival, with its id; then one row
--               per end of a child, with the child's job_id.
-- See           SQL.md: materialized CTE.
--
-- It is one statement, so wake_seq and the names belong to one snapshot. A signal or an end that is
-- not in it is folded later: then wake_seq changes, and suspend_jobs.sql notices.

with
slot as materialized (
    select job.id, job.slot_no, job.wake_seq
    from reltask.jobs as job
    where job.id = :job_id::uuid and job.slot_no = :slot_no::bigint
)

select 'slot' as part, slot.wake_seq as seq, null::text as name, null::text as id,
       null::json as value, null::timestamptz as sent_at, null::integer as nth,
       null::uuid as job_id, null::text as outcome, null::text as error
from slot
union all
(
    select 'signal', signal.seq, signal.name, signal.id, signal.value, signal.sent_at, null, null,
           null, null
    from slot
    join reltask.signals as signal
        on signal.job_id = slot.id and signal.slot_no = slot.slot_no
    where signal.consumed_by is null
    order by signal.seq
)
union all
(
    select 'end', null, child.step, null, child.value, null, child.nth, child.job_id,
           child.outcome, child.error
    from slot
    join reltask.child_ends as child
        on child.parent_id = slot.id and child.slot_no = slot.slot_no
    order by child.step, child.nth
);
