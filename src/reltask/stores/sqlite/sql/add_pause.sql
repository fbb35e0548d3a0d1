-- Purpose       Pause a queue or a task: no worker claims a job of it any more.
-- Precondition  It is not paused. An existing pause keeps its reason.
-- Lock order    Needs the write lock.
-- Returns       One row with the name, if the pause is new.
-- Parameters    :kind is 'queue' or 'task'.
-- See           SQL.md: one writer, paused lanes.

insert into reltask_pauses (kind, name, reason, paused_by, paused_at)
values (:kind, :name, :reason, :paused_by, :now)
on conflict do nothing
returning name;
