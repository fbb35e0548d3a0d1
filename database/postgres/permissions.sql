-- Five roles. Run it after `reltask migrate`, as an administrator who may create roles, and again
-- after each later migration.
--
--     reltask_migrate   owns the tables and may change them; for deployments
--     reltask_run       workers: claim, settle, lead, prune, read; cannot change the ledger, date
--                       an entry back, delete one younger than an hour, or change the tables
--     reltask_operate   people: read everything; schedule, replace, pause, resume, run now, retry,
--                       cancel and discard jobs; pause queues and tasks; change limits; make steps
--                       run again; send signals; release leases; cannot claim, record a step, or
--                       write other entries than "cancelled" and "discarded" into the ledger
--     reltask_enqueue   web applications: insert one-offs and send signals; cannot schedule, read
--                       arguments or values, update, claim or delete anything, or insert a job
--                       again that has ended
--     reltask_read      dashboards and people: read everything, write nothing
--
-- These roles cannot log in. Grant them to your own users:  grant reltask_run to my_worker;
-- A web application that also schedules or cancels jobs needs reltask_operate. What each role can
-- still do if its password is stolen: docs/security.md.
--
-- The script is one transaction: what it revokes it grants again before any session sees the
-- change, so it can run beside workers, which wait for a moment. If it fails, nothing has changed.

begin;

-- No function of another user may run with the rights of the administrator.
set local search_path = pg_catalog;

-- Give up rather than make all workers wait.
set local lock_timeout = '15s';

do $$
declare
    name text;
begin
    foreach name in array array[
        'reltask_migrate', 'reltask_run', 'reltask_operate', 'reltask_enqueue', 'reltask_read'
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
revoke all on all tables in schema reltask
    from public, reltask_run, reltask_operate, reltask_enqueue, reltask_read;

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
alter table reltask.pauses owner to reltask_migrate;
alter table reltask.keys owner to reltask_migrate;
alter table reltask.actions owner to reltask_migrate;
alter table reltask.limits owner to reltask_migrate;
alter table reltask.limit_keys owner to reltask_migrate;
alter function reltask.refuse_ended_jobs() owner to reltask_migrate;
alter function reltask.limits_fit(text, text[]) owner to reltask_migrate;
alter function reltask.mark_waiting_job() owner to reltask_migrate;
alter function reltask.mark_freed_places() owner to reltask_migrate;
alter function reltask.mark_taken_places() owner to reltask_migrate;
alter function reltask.first_id_at(timestamptz) owner to reltask_migrate;
alter function reltask.partition_ledger(integer) owner to reltask_migrate;
alter function reltask.add_partitions(bigint) owner to reltask_migrate;
alter function reltask.drop_partitions(timestamptz) owner to reltask_migrate;
alter function reltask.renew_partitions(timestamptz) owner to reltask_migrate;

-- The ledger's partitions, if it has any, belong to its owner, who can drop them. No role has a
-- right to them: rows are reached through the ledger.
do $$
declare
    part regclass;
begin
    for part in select inhrelid from pg_inherits where inhparent = 'reltask.runs'::regclass loop
        execute format('alter table %s owner to reltask_migrate', part);
    end loop;
end
$$;

grant usage on schema reltask to reltask_run, reltask_operate, reltask_enqueue, reltask_read;
grant select on reltask.meta to reltask_run, reltask_operate, reltask_enqueue, reltask_read;
grant update (draining) on reltask.meta to reltask_operate;

-- Workers. The row of a lease is never deleted, because its term must keep growing.
grant select, insert, update, delete on reltask.jobs to reltask_run;
grant select, insert, delete, update (job_id) on reltask.runs to reltask_run;
grant select, insert, update, delete on reltask.workers to reltask_run;
grant select, insert, update on reltask.leases to reltask_run;
grant select, insert, update, delete on reltask.lease_waiters, reltask.metrics to reltask_run;
grant select, insert, update, delete on
    reltask.steps, reltask.signals, reltask.child_ends, reltask.marks
    to reltask_run;
grant select, insert, delete on reltask.pauses to reltask_run;
grant select, insert, update on reltask.limits to reltask_run;
grant select, insert, update, delete on reltask.limit_keys to reltask_run;
grant select, insert, update, delete on reltask.keys to reltask_run;
grant execute on function reltask.renew_partitions(timestamptz) to reltask_run;

-- The ledger is append-only, except for pruning: a delete does not find rows younger than an hour,
-- and a new row ends now, so that no worker can replace what it has deleted. Pruning skips locked
-- rows, so it must be able to lock some, for which PostgreSQL requires the right to update one
-- column; the policy lets no update through. The grants say who may read and insert at all. The
-- owner of the tables is not bound by the policies.
alter table reltask.runs enable row level security;
drop policy if exists runs_are_seen on reltask.runs;
drop policy if exists runs_are_added on reltask.runs;
drop policy if exists runs_of_removed_jobs_are_added on reltask.runs;
drop policy if exists runs_are_locked_but_not_changed on reltask.runs;
drop policy if exists runs_are_kept_for_an_hour on reltask.runs;
create policy runs_are_seen on reltask.runs for select using (true);
create policy runs_are_added on reltask.runs for insert to reltask_run with check (
    finished_at between statement_timestamp() - interval '1 minute'
    and statement_timestamp() + interval '1 minute'
);
create policy runs_of_removed_jobs_are_added on reltask.runs for insert to reltask_operate
    with check (
        (
            outcome in ('discarded', 'cancelled') and error is null
            or outcome = 'cancelled' and error = 'its parent has ended'
        )
        and worker is null and result is null
        and args is null and headers is null
        and finished_at between statement_timestamp() - interval '1 minute'
        and statement_timestamp() + interval '1 minute'
    );
create policy runs_are_locked_but_not_changed on reltask.runs for update
    using (finished_at < statement_timestamp() - interval '1 hour') with check (false);
create policy runs_are_kept_for_an_hour on reltask.runs for delete
    using (finished_at < statement_timestamp() - interval '1 hour');

-- The metrics are counted from the ledger's last hour: what is older is pruned, but not rewritten.
alter table reltask.metrics enable row level security;
drop policy if exists metrics_are_seen on reltask.metrics;
drop policy if exists metrics_of_the_last_hour_are_added on reltask.metrics;
drop policy if exists metrics_of_the_last_hour_are_changed on reltask.metrics;
drop policy if exists metrics_are_kept_for_an_hour on reltask.metrics;
create policy metrics_are_seen on reltask.metrics for select using (true);
create policy metrics_of_the_last_hour_are_added on reltask.metrics for insert with check (
    minute between statement_timestamp() - interval '1 hour' and statement_timestamp()
);
create policy metrics_of_the_last_hour_are_changed on reltask.metrics for update
    using (true) with check (
        minute between statement_timestamp() - interval '1 hour' and statement_timestamp()
    );
create policy metrics_are_kept_for_an_hour on reltask.metrics for delete
    using (minute < statement_timestamp() - interval '1 hour');

-- A mark of a child's end would wake its parent for nothing: only workers and operators leave one.
-- Only workers say that places of a limit are free: their claims have ended.
alter table reltask.marks enable row level security;
drop policy if exists marks_are_seen on reltask.marks;
drop policy if exists marks_of_signals_are_left on reltask.marks;
drop policy if exists marks_of_children_are_left on reltask.marks;
drop policy if exists marks_of_limits_are_left on reltask.marks;
drop policy if exists marks_of_free_places_are_left on reltask.marks;
drop policy if exists marks_are_locked on reltask.marks;
drop policy if exists marks_are_folded on reltask.marks;
drop policy if exists marks_of_children_are_forgotten on reltask.marks;
create policy marks_are_seen on reltask.marks for select using (true);
create policy marks_of_signals_are_left on reltask.marks for insert with check (kind = 'signal');
create policy marks_of_children_are_left on reltask.marks for insert
    to reltask_run, reltask_operate with check (kind = 'child');
create policy marks_of_limits_are_left on reltask.marks for insert
    with check (kind = 'limit' and freed = 0);
create policy marks_of_free_places_are_left on reltask.marks for insert
    to reltask_run with check (kind = 'limit');
create policy marks_are_locked on reltask.marks for update to reltask_run using (true);
create policy marks_are_folded on reltask.marks for delete to reltask_run using (true);
create policy marks_of_children_are_forgotten on reltask.marks for delete
    to reltask_operate using (kind = 'child');

-- Operators. The columns of a claim, and the number of the slot, are the workers' alone. Discarding
-- a job reports its end to its parent. Forgetting a step removes its record, the ends of its
-- children and their marks, and lets its signal be consumed again.
grant insert (
    id, task, key, queue, priority, args, schedule, declaration, app_version, max_attempts,
    lock_timeout_ms, created_at, next_run_time, parent_id, parent_slot, parent_step, parent_nth,
    headers, limit_key, limits
) on reltask.jobs to reltask_operate;
grant update (
    queue, priority, args, schedule, declaration, app_version, max_attempts, lock_timeout_ms,
    next_run_time, not_before, attempt, paused_at, dead_at, losses, isolated, steps, headers,
    limit_key, limits, cancel_slot
) on reltask.jobs to reltask_operate;
grant delete on reltask.jobs to reltask_operate;
grant insert on reltask.runs to reltask_operate;
grant update (holder, acquisition, expires_at) on reltask.leases to reltask_operate;
grant delete on reltask.steps to reltask_operate;
grant insert, update (consumed_by) on reltask.signals to reltask_operate;
grant insert, delete on reltask.child_ends to reltask_operate;
grant insert, delete on reltask.marks to reltask_operate;
grant insert, update on reltask.limits to reltask_operate;
grant insert, delete on reltask.pauses to reltask_operate;
grant insert, update (job_id, until, until_start) on reltask.keys to reltask_operate;

-- The log of actions is append-only: what was done is completed once, and never removed or renamed.
grant insert (id, at, actor, action, target, seen, jobs), update (outcome, changed)
    on reltask.actions to reltask_operate;

-- Enqueue only: insert the columns of a new one-off; read ids and names, to recognise a repeated
-- insert and a key that is taken. The columns of a schedule, of a claim and of a parent cannot be
-- written, so that no inserted job recurs, takes the place of a declared one, looks claimed or
-- done, or answers in the place of a child. Signals are inserted with their marks; their values
-- cannot be read.
grant insert (
    id, task, key, queue, priority, args, max_attempts, lock_timeout_ms, created_at, next_run_time,
    headers, limit_key, limits
) on reltask.jobs to reltask_enqueue;
grant select (id, task, key, schedule, slot_no, dead_at, slot_started_at) on reltask.jobs
    to reltask_enqueue;
grant select, insert, update (job_id, until, until_start) on reltask.keys to reltask_enqueue;
grant select (job_id) on reltask.runs to reltask_enqueue;
grant insert (job_id, slot_no, name, id, value, sent_at) on reltask.signals to reltask_enqueue;
grant select (job_id, slot_no, name) on reltask.signals to reltask_enqueue;
grant insert (queue, task, at, kind, job_id, slot_no, name) on reltask.marks to reltask_enqueue;

-- Read.
grant select on
    reltask.jobs, reltask.runs, reltask.workers, reltask.leases, reltask.lease_waiters,
    reltask.metrics, reltask.steps, reltask.signals, reltask.child_ends, reltask.marks,
    reltask.pauses, reltask.actions, reltask.keys, reltask.limits, reltask.limit_keys
    to reltask_operate, reltask_read;

commit;
