-- Purpose       Read the steps that a slot has recorded.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per step, in the order of their start.
-- Parameters    :slot_no is null for the newest slot that has steps.

select job_id, slot_no, name, kind, state, value, error, fingerprint, attempt, fence, started_at,
       recorded_at, wake_at, signal, pending
from reltask_steps
where job_id = :job_id
  and slot_no = coalesce(
      :slot_no,
      (select max(slot_no) from reltask_steps where job_id = :job_id)
  )
order by started_at, name;
