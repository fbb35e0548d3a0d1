-- Purpose       renew a lease, and publish what its holder has to say.
-- Precondition  term and acquisition still match, and the lease has not ended: one that has never revives.
-- Lock order    the whole file: one short write transaction.

update reltask_leases
   set heartbeat_at = :now,
       expires_at   = :now + ttl_ms * 1000,
       metadata     = coalesce(:metadata, metadata)
 where name = :lease and term = :term and acquisition = :acquisition
   and expires_at > :now
returning name;
