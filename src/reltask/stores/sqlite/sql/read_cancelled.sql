-- Purpose       Read which of a worker's claims are cancelled, after the file has changed.
-- Precondition  None. Reads committed rows.
-- Lock order    Locks nothing.
-- Returns       One row per claim whose slot is cancelled: id, fence.
-- See           SQL.md: one writer, fence, primary-key lookup, JSON batch.

with
batch as (
    select json_extract(value, '$[0]') as id, json_extract(value, '$[1]') as fence
    from json_each(:holds)
)

select jobs.id, jobs.fence
from batch
join reltask_jobs as jobs on jobs.id = batch.id
where jobs.fence = batch.fence
  and +jobs.locked_by = :worker
  and jobs.cancel_slot = jobs.slot_no;
