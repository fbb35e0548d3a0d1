-- Purpose       Record what an operator is about to do.
-- Precondition  It is not recorded yet: sent twice, it is recorded once. The id is the caller's.
-- Lock order    The new row.
-- Returns       No rows.
-- See           SQL.md: nullable now.

insert into reltask.actions (id, at, actor, action, target, seen, jobs)
values (
    :id::uuid,
    coalesce(:now::timestamptz, statement_timestamp()),
    :actor::text,
    :action::text,
    :target::text,
    :seen::text,
    :jobs::integer
)
on conflict do nothing;
