-- Purpose       which of these claims the committed rows still show as this worker's.
-- Precondition  none; reads only.
-- Lock order    no locks.
--
-- "Not less and not greater" leaves the planner one way to find each row, whatever the statistics say.

select job.id, job.fence
from unnest(:ids::uuid[], :fences::bigint[]) as given (id, fence)
join reltask.jobs as job on job.id >= given.id and job.id <= given.id and job.fence = given.fence
where job.locked_by is not distinct from :worker::text;
