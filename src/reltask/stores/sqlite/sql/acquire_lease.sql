-- Purpose       take a lease that nobody holds any more, with the next term; or say who comes before this one.
-- Precondition  never held, given back, or past its end by the database's clock. The same acquisition again, whose
--               answer was lost, finds what it has won: same term, renewed.
-- Lock order    the first statement only reads, and a try that is refused ends with it unless its waiting has to be
--               written down; the others need the write lock.

-- How the lease stands, and who waits. A waiting that goes on for long enough is not written again: each write would
-- wake everybody who watches the file.
select leases.expires_at,
       leases.holder is null or leases.expires_at <= :now or leases.acquisition = :acquisition as is_free,
       (select count(*)
          from reltask_lease_waiters
         where name = :lease and waiting_until > :now and holder < :holder) as rank,
       (select count(*)
          from reltask_lease_waiters
         where name = :lease and waiting_until > :now and holder <> :holder) + 1 as waiting,
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
   set term         = lease.term + (lease.acquisition is not :acquisition or lease.expires_at <= :now),
       acquired_at  = case when lease.acquisition is not :acquisition or lease.expires_at <= :now
                           then :now else lease.acquired_at end,
       metadata     = case when lease.acquisition is not :acquisition or lease.expires_at <= :now
                           then '{}' else lease.metadata end,
       holder       = :holder,
       acquisition  = :acquisition,
       heartbeat_at = :now,
       ttl_ms       = :ttl_ms,
       expires_at   = :now + :ttl_ms * 1000
 where lease.holder is null or lease.expires_at <= :now or lease.acquisition = :acquisition
returning term, expires_at;

-- Who has it does not wait for it; and those that gave up are forgotten.
delete from reltask_lease_waiters where name = :lease and (holder = :holder or waiting_until <= :now);

insert into reltask_lease_waiters (name, holder, waiting_until)
values (:lease, :holder, :now + :waits)
on conflict (name, holder) do update set waiting_until = excluded.waiting_until;
