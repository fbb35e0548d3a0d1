-- Purpose       List the signals of a job, consumed ones too.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per signal, oldest first.

select job_id, slot_no, name, id, value, sent_at, consumed_by
from reltask_signals
where job_id = :job_id
order by seq;
