-- Four roles, from the most to the least trusted. Run it after `reltask migrate`, as an administrator who may create
-- roles; run it again after each later migration. Running it again changes nothing.
--
--     reltask_migrate   owns the tables and may change them; for the one who deploys
--     reltask_run       workers: claims, settles, reads; cannot rewrite or erase the ledger, nor change the tables
--     reltask_enqueue   web applications: adds jobs; cannot read arguments, change, claim or remove anything
--     reltask_read      dashboards and people: sees everything, changes nothing
--
-- Nobody logs in as one of these. Give them to your own users:  grant reltask_run to my_worker;

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
end
$$;

revoke all on schema reltask from public;
revoke all on all tables in schema reltask from public, reltask_run, reltask_enqueue, reltask_read;

alter schema reltask owner to reltask_migrate;
alter table reltask.meta owner to reltask_migrate;
alter table reltask.jobs owner to reltask_migrate;
alter table reltask.runs owner to reltask_migrate;
alter table reltask.workers owner to reltask_migrate;

grant usage on schema reltask to reltask_run, reltask_enqueue, reltask_read;
grant select on reltask.meta to reltask_run, reltask_enqueue, reltask_read;

-- Workers. The ledger is append-only to them.
grant select, insert, update, delete on reltask.jobs to reltask_run;
grant select, insert on reltask.runs to reltask_run;
grant select, insert, update on reltask.workers to reltask_run;

-- Enqueue only: the columns of a new job, and of what is there nothing but the ids, so that a repeated insert is
-- recognised. A claim's columns cannot be written, so nobody can insert a job that looks claimed or done.
grant insert (
    id, task, key, queue, priority, args, schedule, declaration, app_version, max_attempts, lock_timeout_ms,
    created_at, next_run_time
) on reltask.jobs to reltask_enqueue;
grant select (id) on reltask.jobs to reltask_enqueue;
grant select (job_id) on reltask.runs to reltask_enqueue;

-- Read only.
grant select on reltask.jobs, reltask.runs, reltask.workers to reltask_read;
