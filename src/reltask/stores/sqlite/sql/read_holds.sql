-- Purpose       Read which of these claims the committed rows still show as this worker's.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per claim that still holds: id, fence.
-- See           SQL.md: primary-key lookup, JSON batch.

select jobs.id, jobs.fence
from json_each(:holds) as held
join reltask_jobs as jobs on jobs.id = json_extract(held.value, '$[0]')
where jobs.fence = json_extract(held.value, '$[1]')
  and +jobs.locked_by = :worker;
