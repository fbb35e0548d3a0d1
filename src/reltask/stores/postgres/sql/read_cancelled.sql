-- Purpose       Read which of a worker's claims are cancelled, after a signal that one may be.
-- Precondition  None. Reads committed rows.
-- Lock order    Locks nothing.
-- Returns       One row per claim whose slot is cancelled: id, fence.
-- See           SQL.md: fence, primary-key lookup.

select job.id, job.fence
from unnest(:ids::uuid[], :fences::bigint[]) as pair (id, fence)
cross join lateral (
    select held.id, held.fence
    from reltask.jobs as held
    where held.id = pair.id and held.fence = pair.fence
      and held.locked_by is not distinct from :worker::text and held.cancel_slot = held.slot_no
    limit 1
) as job;
