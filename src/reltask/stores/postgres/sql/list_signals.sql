-- Purpose       List the signals of a job, oldest first, consumed ones too.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per signal.

select job_id, slot_no, name, id, value, sent_at, consumed_by
from reltask.signals
where job_id = :job_id::uuid
order by slot_no, seq;
