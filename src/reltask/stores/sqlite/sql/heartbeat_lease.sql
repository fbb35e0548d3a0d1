-- Purpose       Renew a lease, and publish its holder's metadata.
-- Precondition  Term and acquisition still match, and the lease has not expired: an expired one is
--               never renewed.
-- Lock order    SQLite's write lock, held for the whole transaction.
-- Returns       One row with the name, if the lease was renewed.
-- See           SQL.md: one writer.

update reltask_leases
set heartbeat_at = :now,
    expires_at = :now + ttl_ms * 1000,
    metadata = coalesce(:metadata, metadata)
where name = :lease and term = :term and acquisition = :acquisition
  and expires_at > :now
returning name;
