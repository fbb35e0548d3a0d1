-- Purpose       Acquire a free lease with the next term, or report this candidate's rank.
-- Precondition  The lease was never held, was given back, or has expired by the database's clock.
--               An acquisition that is sent again because its answer was lost keeps its term and is
--               renewed.
-- Lock order    The first statement only reads. A refused candidate stops after it, unless its wait
--               has to be written. The others need the write lock.
-- Returns       Statement 1: whether the lease is free, when it expires, rank and number of
--               waiters, and whether the wait has to be written. Statement 2: term and expiry, if
--               acquired.
-- See           SQL.md: one writer.

-- How the lease stands, and who waits. A wait that lasts long enough is not written again, because
-- each write wakes every process that watches the file.
select leases.expires_at,
       leases.holder is null or leases.expires_at <= :now or leases.acquisition = :acquisition
           as is_free,
       (
           select count(*)
           from reltask_lease_waiters
           where name = :lease and waiting_until > :now and holder < :holder
       ) as rank,
       (
           select count(*)
           from reltask_lease_waiters
           where name = :lease and waiting_until > :now and holder <> :holder
       ) + 1 as waiting,
       :waits is not null and not exists (
           select 1
           from reltask_lease_waiters
           where name = :lease and holder = :holder and waiting_until >= :now + :waits / 2
       ) as must_wait
from (select :lease as name) as wanted
left join reltask_leases as leases on leases.name = wanted.name;

insert into reltask_leases as lease (
    name, holder, acquisition, term, acquired_at, heartbeat_at, ttl_ms, expires_at
)
values (:lease, :holder, :acquisition, 1, :now, :now, :ttl_ms, :now + :ttl_ms * 1000)
on conflict (name) do update
set term = lease.term + (lease.acquisition is not :acquisition or lease.expires_at <= :now),
    acquired_at = case when lease.acquisition is not :acquisition or lease.expires_at <= :now
                       then :now else lease.acquired_at end,
    metadata = case when lease.acquisition is not :acquisition or lease.expires_at <= :now
                    then '{}' else lease.metadata end,
    holder = :holder,
    acquisition = :acquisition,
    heartbeat_at = :now,
    ttl_ms = :ttl_ms,
    expires_at = :now + :ttl_ms * 1000
where lease.holder is null or lease.expires_at <= :now or lease.acquisition = :acquisition
returning term, expires_at;

-- Acquired: the holder does not wait any more, and expired waits are removed.
delete from reltask_lease_waiters
where name = :lease and (holder = :holder or waiting_until <= :now);

-- Refused: this candidate waits.
insert into reltask_lease_waiters (name, holder, waiting_until)
values (:lease, :holder, :now + :waits)
on conflict (name, holder) do update
set waiting_until = excluded.waiting_until;
