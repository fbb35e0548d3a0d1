-- Purpose       One page of what operators did, the latest first.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per action.
-- Parameters    :after_at and :after_id are those of the last row of the page before, or null.

select id, at, actor, action, target, seen, jobs, outcome, changed
from reltask_actions
where at <= coalesce(:after_at, 9223372036854775807)
  and (:after_at is null or at < :after_at or id < :after_id)
order by at desc, id desc
limit :limit;
