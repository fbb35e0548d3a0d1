-- Purpose       One page of what operators did, the latest first.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per action.
-- Parameters    :after_at and :after_id are those of the last row of the page before, or null.

select id, at, actor, action, target, seen, jobs, outcome, changed
from reltask.actions
where (at, id) < (
    coalesce(:after_at::timestamptz, timestamptz 'infinity'),
    coalesce(:after_id::uuid, uuid 'ffffffff-ffff-ffff-ffff-ffffffffffff')
)
order by at desc, id desc
limit :limit::integer;
