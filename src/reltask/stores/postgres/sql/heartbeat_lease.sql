-- Purpose       Renew a lease, and publish its holder's metadata.
-- Precondition  Term and acquisition still match, and the lease has not expired: an expired one is
--               never renewed.
-- Lock order    One row. An open transaction of the leader does not block it: guard_lease.sql locks
--               the row in a mode that conflicts with takeovers only.
-- Returns       One row with the name, if the lease was renewed.
-- See           SQL.md: nullable now, exact types.

update reltask.leases as lease
set heartbeat_at = coalesce(:now::timestamptz, statement_timestamp()),
    expires_at = coalesce(:now::timestamptz, statement_timestamp())
        + lease.ttl_ms::float8 * interval '1 millisecond',
    metadata = coalesce(:metadata::json, lease.metadata)
where lease.name = :lease::text and lease.term = :term::bigint
  and lease.acquisition = :acquisition::uuid
  and lease.expires_at > coalesce(:now::timestamptz, statement_timestamp())
returning lease.name;
