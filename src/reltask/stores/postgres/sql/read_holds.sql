-- Purpose       which of these claims the committed rows still show as this worker's.
-- Precondition  none; reads only.
-- Lock order    no locks.
--
-- "Any of this one" is "equal" to people; the planner can only look each id up, whatever the statistics say.

select job.id, job.fence
from unnest(:ids::uuid[], :fences::bigint[]) as given (id, fence)
join reltask.jobs as job on job.id = any (array[given.id]) and job.fence = given.fence
where job.locked_by is not distinct from :worker::text;
