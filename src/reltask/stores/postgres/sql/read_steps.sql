-- Purpose       Read the recorded steps of a slot, in the order of their start.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per step.
-- Parameters    A null :slot_no is the newest slot that has steps.

select job_id, slot_no, name, kind, state, value, error, fingerprint, attempt, fence, started_at,
       recorded_at, wake_at, signal, pending
from reltask.steps
where job_id = :job_id::uuid
  and slot_no = coalesce(
      :slot_no::bigint,
      (
          select newest.slot_no
          from reltask.steps as newest
          where newest.job_id = :job_id::uuid
          order by newest.slot_no desc
          limit 1
      )
  )
order by started_at, recorded_at, name;
