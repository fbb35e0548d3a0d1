-- Purpose       Read all that may have come for a slot, before its run suspends.
-- Precondition  None. The statements see one committed state.
-- Lock order    Locks nothing.
-- Returns       Statement 1: one row, the wake_seq, if the job is in this slot. Statement 2: its
--               signals that are not consumed, in the order of their arrival. Statement 3: how its
--               children ended.
-- See           SQL.md: mark.

select wake_seq
from reltask_jobs
where id = :job_id and slot_no = :slot_no;

select job_id, slot_no, name, id, value, sent_at, consumed_by
from reltask_signals
where job_id = :job_id and slot_no = :slot_no
  and consumed_by is null
order by seq;

select step, nth, job_id, outcome, value, error
from reltask_child_ends
where parent_id = :job_id and slot_no = :slot_no
order by step, nth;
