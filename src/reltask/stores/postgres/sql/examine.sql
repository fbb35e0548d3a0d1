-- Purpose       what a doctor wants to know about this database, whether or not it has reltask's tables.
-- Precondition  none; reads only.
-- Lock order    no locks.

with
allowed as (
    select name,
           case when to_regclass('reltask.' || name) is not null
                then has_schema_privilege('reltask', 'usage') else false end as visible,
           to_regclass('reltask.' || name)::oid as id
    from unnest(array['jobs', 'runs', 'workers', 'leases', 'lease_waiters', 'metrics']) as name
),

others as (
    select activity.application_name, activity.usename, activity.xact_start
    from pg_stat_activity as activity
    where activity.datname = current_database() and activity.pid <> pg_backend_pid()
      and activity.xact_start is not null
    order by activity.xact_start
    limit 1
)

select coalesce(:now::timestamptz, clock_timestamp()) as now,
       current_setting('server_version') as version,
       current_user::text as username,
       pg_is_in_recovery() as in_recovery,
       current_setting('transaction_read_only')::boolean as read_only,
       (select bool_and(visible and has_table_privilege(id, 'select, insert')
                        and (name = 'runs' or has_table_privilege(id, 'update')))
        from allowed
        where name <> 'lease_waiters') as may_run,
       (select bool_and(visible and has_any_column_privilege(id, 'insert')) from allowed where name = 'jobs')
           as may_enqueue,
       (select bool_and(visible and has_table_privilege(id, 'select')) from allowed) as may_read,
       (select count(*) from pg_stat_activity where backend_type = 'client backend') as connections,
       current_setting('max_connections')::integer as connection_limit,
       coalesce((select clock_timestamp() - xact_start from others), interval '0') as oldest_transaction,
       (select coalesce(nullif(application_name, ''), usename) from others) as oldest_owner,
       current_setting('fsync') as fsync,
       current_setting('synchronous_commit') as synchronous_commit;
