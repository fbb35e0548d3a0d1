-- Purpose       Record what an operator is about to do.
-- Precondition  It is not recorded yet: sent twice, it is recorded once. The id is the caller's.
-- Lock order    The write lock.
-- Returns       No rows.
-- See           SQL.md: nullable now, one writer.

insert into reltask_actions (id, at, actor, action, target, seen, jobs)
values (:id, :now, :actor, :action, :target, :seen, :jobs)
on conflict do nothing;
