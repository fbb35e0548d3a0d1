-- Purpose       Pause a queue or a task: no worker claims a job of it any more.
-- Precondition  It is not paused. An existing pause keeps its reason: a row is never updated.
-- Lock order    One row.
-- Returns       One row with the name, if the pause is new.
-- Parameters    :kind is 'queue' or 'task'.
-- See           SQL.md: nullable now, paused lanes.

insert into reltask.pauses (kind, name, reason, paused_by, paused_at)
select :kind::text, :name::text, :reason::text, :paused_by::text,
       coalesce(:now::timestamptz, statement_timestamp())
on conflict do nothing
returning name;
