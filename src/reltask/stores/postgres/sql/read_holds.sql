-- Purpose       Read which of these claims the committed rows still show as this worker's.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per claim that still holds: id, fence.
-- See           SQL.md: primary-key lookup.

select job.id, job.fence
from unnest(:ids::uuid[], :fences::bigint[]) as given (id, fence)
join reltask.jobs as job on job.id = any (array[given.id]) and job.fence = given.fence
where job.locked_by is not distinct from :worker::text;
