-- Purpose       Read what `reltask doctor` reports about a database, with or without reltask's
--               tables.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row.
-- See           SQL.md: nullable now, exact types.

with
-- From the catalogue: a user without usage of the schema cannot even name a table in it.
allowed as (
    select wanted.name, place.id,
           place.id is not null and has_schema_privilege(place.schema, 'usage') as visible
    from pg_catalog.unnest(
        array[
            'jobs', 'runs', 'workers', 'leases', 'lease_waiters', 'metrics', 'steps', 'signals',
            'child_ends', 'marks', 'pauses', 'keys'
        ]
    ) as wanted (name)
    left join (
        select relation.relname, relation.oid as id, relation.relnamespace as schema
        from pg_class as relation
        join pg_namespace as namespace
            on namespace.oid = relation.relnamespace and namespace.nspname = 'reltask'
    ) as place on place.relname = wanted.name
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
       (
           select bool_and(
               visible
               and has_table_privilege(id, 'select')
               and has_table_privilege(id, 'insert')
               and (name in ('runs', 'pauses') or has_table_privilege(id, 'update'))
           )
           from allowed
       ) as may_run,
       (
           select bool_and(visible and has_column_privilege(id, 'paused_at', 'update'))
           from allowed
           where name = 'jobs'
       ) as may_operate,
       (
           select bool_and(visible and has_any_column_privilege(id, 'insert'))
           from allowed
           where name in ('jobs', 'signals', 'marks')
       ) as may_enqueue,
       (select bool_and(visible and has_table_privilege(id, 'select')) from allowed) as may_read,
       (select count(*) from pg_stat_activity where backend_type = 'client backend') as connections,
       current_setting('max_connections')::integer as connection_limit,
       coalesce((select clock_timestamp() - xact_start from others), interval '0')
           as oldest_transaction,
       (select coalesce(nullif(application_name, ''), usename) from others) as oldest_owner,
       current_setting('fsync') as fsync,
       current_setting('synchronous_commit') as synchronous_commit,
       current_setting('transaction_isolation') as transaction_isolation,
       current_setting('search_path') as search_path,
       (
           select coalesce(string_agg(namespace.nspname::text, ', '::text), '')
           from pg_namespace as namespace
           where exists (
               select
               from aclexplode(namespace.nspacl) as granted
               where granted.grantee = 0::oid and granted.privilege_type = 'CREATE'
           )
       ) as open_schemas;
