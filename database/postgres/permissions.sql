-- Four roles, from the most to the least privileged. Run it after `reltask migrate`, as an
-- administrator who may create roles, and again after each later migration.
--
--     reltask_migrate   owns the tables and may change them; for deployments
--     reltask_run       workers: claim, settle, lead, prune, read; cannot update the ledger, delete
--                       ledger rows younger than an hour, or change the tables
--     reltask_enqueue   web applications: insert jobs and send signals; cannot read arguments or
--                       values, or update, claim or delete anything
--     reltask_read      dashboards and people: read everything, write nothing
--
-- These roles cannot log in. Grant them to your own users:  grant reltask_run to my_worker;
--
-- The script is one transaction: what it revokes it grants again before any session sees the
-- change, so it can run beside workers, which wait for a moment. If it fails, nothing has changed.

begin;

-- Give up rather than make all workers wait.
set local lock_timeout = '15s';

do $$
declare
    name text;
begin
    foreach name in array array[
        'reltask_migrate', 'reltask_run', 'reltask_enqueue', 'reltask_read'
    ] loop
        if not exists (select from pg_roles where rolname = name) then
            execute format('create role %I nologin', name);
        end if;
    end loop;
    -- "create schema if not exists", with which migrations begin, needs this even if it exists.
    execute format('grant create on database %I to reltask_migrate', current_database());
    -- A user can give a table only to a role of which it is a member. A superuser is a member of
    -- all; a user who may only create roles is not even a member of those created above.
    if not pg_has_role('reltask_migrate', 'usage') then
        grant reltask_migrate to current_user;
    end if;
end
$$;

revoke all on schema reltask from public;
revoke all on all tables in schema reltask from public, reltask_run, reltask_enqueue, reltask_read;

alter schema reltask owner to reltask_migrate;
alter table reltask.meta owner to reltask_migrate;
alter table reltask.jobs owner to reltask_migrate;
alter table reltask.runs owner to reltask_migrate;
alter table reltask.workers owner to reltask_migrate;
alter table reltask.leases owner to reltask_migrate;
alter table reltask.lease_waiters owner to reltask_migrate;
alter table reltask.metrics owner to reltask_migrate;
alter table reltask.steps owner to reltask_migrate;
alter table reltask.signals owner to reltask_migrate;
alter table reltask.child_ends owner to reltask_migrate;
alter table reltask.marks owner to reltask_migrate;

grant usage on schema reltask to reltask_run, reltask_enqueue, reltask_read;
grant select on reltask.meta to reltask_run, reltask_enqueue, reltask_read;

-- Workers. The row of a lease is never deleted, because its term must keep growing.
grant select, insert, update, delete on reltask.jobs to reltask_run;
grant select, insert, delete, update (job_id) on reltask.runs to reltask_run;
grant select, insert, update, delete on reltask.workers to reltask_run;
grant select, insert, update on reltask.leases to reltask_run;
grant select, insert, update, delete on reltask.lease_waiters, reltask.metrics to reltask_run;
grant select, insert, update, delete on
    reltask.steps, reltask.signals, reltask.child_ends, reltask.marks
    to reltask_run;

-- For workers the ledger is append-only, except for pruning: a delete does not find rows younger
-- than an hour. Pruning skips locked rows, so it must be able to lock some, for which PostgreSQL
-- requires the right to update one column; the policy lets no update through. The grants say who
-- may read and insert at all. The owner of the tables is not bound by the policies.
alter table reltask.runs enable row level security;
drop policy if exists runs_are_seen on reltask.runs;
drop policy if exists runs_are_added on reltask.runs;
drop policy if exists runs_are_locked_but_not_changed on reltask.runs;
drop policy if exists runs_are_kept_for_an_hour on reltask.runs;
create policy runs_are_seen on reltask.runs for select using (true);
create policy runs_are_added on reltask.runs for insert with check (true);
create policy runs_are_locked_but_not_changed on reltask.runs for update
    using (finished_at < statement_timestamp() - interval '1 hour') with check (false);
create policy runs_are_kept_for_an_hour on reltask.runs for delete
    using (finished_at < statement_timestamp() - interval '1 hour');

-- Enqueue only: insert the columns of a new job; read ids and names, to recognise a repeated insert
-- and a key that is taken. The columns of a claim cannot be written, so that no inserted job can
-- look claimed or done. Signals are inserted with their marks, and their values cannot be read.
grant insert (
    id, task, key, queue, priority, args, schedule, declaration, app_version, max_attempts,
    lock_timeout_ms, created_at, next_run_time, parent_id, parent_slot, parent_step, parent_nth
) on reltask.jobs to reltask_enqueue;
grant select (id, task, key, schedule, slot_no) on reltask.jobs to reltask_enqueue;
grant select (job_id) on reltask.runs to reltask_enqueue;
grant insert (job_id, slot_no, name, id, value, sent_at) on reltask.signals to reltask_enqueue;
grant select (job_id, slot_no, name) on reltask.signals to reltask_enqueue;
grant insert (at, kind, job_id, slot_no, name) on reltask.marks to reltask_enqueue;

-- Read only.
grant select on
    reltask.jobs, reltask.runs, reltask.workers, reltask.leases, reltask.lease_waiters,
    reltask.metrics, reltask.steps, reltask.signals, reltask.child_ends, reltask.marks
    to reltask_read;

commit;
