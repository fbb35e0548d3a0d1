-- Purpose       mark workers that gave no sign of life for as long as they had promised.
-- Precondition  neither stopped nor marked yet; and, where a term is given, the lease is still held under it.
-- Lock order    the whole file: one short write transaction.

update reltask_workers
   set dead_at = :now
 where stopped_at is null and dead_at is null and alive_until < :now
   and (:term is null
        or exists (select 1 from reltask_leases where name = :lease and term = :term and holder is not null))
returning id;
