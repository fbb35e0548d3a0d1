-- Four roles, from the most to the least trusted. Run it after `reltask migrate`, as an administrator who may create
-- roles; run it again after each later migration. Running it again changes nothing.
--
--     reltask_migrate   owns the tables and may change them; for the one who deploys
--     reltask_run       workers: claims, settles, leads, prunes, reads; cannot rewrite the ledger, nor erase what is
--                       younger than an hour, nor change the tables
--     reltask_enqueue   web applications: adds jobs; cannot read arguments, change, claim or remove anything
--     reltask_read      dashboards and people: sees everything, changes nothing
--
-- Nobody logs in as one of these. Give them to your own users:  grant reltask_run to my_worker;
--
-- All of it is one transaction: what is taken away below is given again before anybody sees that it was gone, so it can
-- run beside workers, which wait for a moment. If it fails, nothing has changed: run it again.

begin;

-- Rather give up than let every worker wait behind it.
set local lock_timeout = '15s';

do $$
declare
    name text;
begin
    foreach name in array array['reltask_migrate', 'reltask_run', 'reltask_enqueue', 'reltask_read'] loop
        if not exists (select from pg_roles where rolname = name) then
            execute format('create role %I nologin', name);
        end if;
    end loop;
    -- "create schema if not exists", the first line of a migration, asks for this even where the schema exists
    execute format('grant create on database %I to reltask_migrate', current_database());
    -- A table can be given only to a role that one has oneself. A superuser has them all; whoever may merely create
    -- roles has not even those made above.
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

grant usage on schema reltask to reltask_run, reltask_enqueue, reltask_read;
grant select on reltask.meta to reltask_run, reltask_enqueue, reltask_read;

-- Workers. The row of a lease is never removed, because its term must go on.
grant select, insert, update, delete on reltask.jobs to reltask_run;
grant select, insert, delete, update (job_id) on reltask.runs to reltask_run;
grant select, insert, update, delete on reltask.workers to reltask_run;
grant select, insert, update on reltask.leases to reltask_run;
grant select, insert, update, delete on reltask.lease_waiters, reltask.metrics to reltask_run;

-- The ledger is append-only to them, except that they prune: a row younger than an hour is not even found by a
-- delete, whoever sends it. To skip what others prune just now it must be able to lock rows, for which PostgreSQL asks
-- for the right to update one column; no update passes its check. Who may read and add rows at all is said by the
-- grants; the tables' owner is not bound.
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

-- Enqueue only: the columns of a new job, and of what is there nothing but ids and names, so that a repeated insert is
-- recognised, and a key that is taken. A claim's columns cannot be written, so nobody can insert a job that looks claimed or done.
grant insert (
    id, task, key, queue, priority, args, schedule, declaration, app_version, max_attempts, lock_timeout_ms,
    created_at, next_run_time
) on reltask.jobs to reltask_enqueue;
grant select (id, task, key) on reltask.jobs to reltask_enqueue;
grant select (job_id) on reltask.runs to reltask_enqueue;

-- Read only.
grant select on reltask.jobs, reltask.runs, reltask.workers, reltask.leases, reltask.lease_waiters, reltask.metrics
    to reltask_read;

commit;
