-- Purpose       Mark a worker as stopped, and remove it from the waiters of all leases.
-- Precondition  Not stopped yet; a second call changes nothing.
-- Lock order    Rows of this worker only. Locked ones are skipped: a worker that stops must not
--               wait for another session. It then counts as alive until its time is over.
-- Returns       No rows.
-- See           SQL.md: nullable now, skip locked.

with
waits_no_more as (
    delete from reltask.lease_waiters as waiter
    using (
        select name, holder
        from reltask.lease_waiters
        where holder = :worker::text
        for update skip locked
    ) as mine
    where waiter.name = mine.name and waiter.holder = mine.holder
)

update reltask.workers
set stopped_at = coalesce(:now::timestamptz, statement_timestamp())
where id = (
    select id
    from reltask.workers
    where id = :worker::text and stopped_at is null
    for update skip locked
);
