-- Purpose       renew a lease, and publish what its holder has to say.
-- Precondition  term and acquisition still match, and the lease has not ended: one that has never revives.
-- Lock order    one row. The leader's own open transaction does not keep it waiting: guard_lease holds the row in a
--               mode that only a takeover conflicts with.

update reltask.leases as lease
set heartbeat_at = coalesce(:now::timestamptz, statement_timestamp()),
    expires_at = coalesce(:now::timestamptz, statement_timestamp()) + lease.ttl_ms * interval '1 millisecond',
    metadata = coalesce(:metadata::json, lease.metadata)
where lease.name = :lease::text and lease.term = :term::bigint and lease.acquisition = :acquisition::uuid
  and lease.expires_at > coalesce(:now::timestamptz, statement_timestamp())
returning lease.name;
