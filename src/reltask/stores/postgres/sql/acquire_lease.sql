-- Purpose       Acquire a free lease with the next term, or report this candidate's rank.
-- Precondition  The lease was never held, was given back, or has expired by the database's clock.
--               An acquisition that is sent again because its answer was lost keeps its term and is
--               renewed.
-- Lock order    The lease's row, then rows of waiters. Locked rows are skipped, so the statement
--               never waits: an open transaction of the leader holds the row in share mode, and
--               then the lease is not free yet. The insert of a new lease takes an advisory lock
--               first, because it would wait for a concurrent insert.
-- Returns       One row: the term (null if refused), the database's time, when the lease expires,
--               this candidate's rank, and the number of waiters.
-- See           SQL.md: nullable now, materialized CTE, skip locked, exact types.

with
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now,
           :ttl_ms::bigint::float8 * interval '1 millisecond' as ttl
),

free as materialized (
    select lease.name, lease.term,
           coalesce(lease.acquisition = :acquisition::uuid, false)
               and lease.expires_at > (select now from parameters) as won_before
    from reltask.leases as lease
    where lease.name = :lease::text
      and (
          lease.holder is null
          or lease.expires_at <= (select now from parameters)
          or lease.acquisition = :acquisition::uuid
      )
    for update of lease skip locked
),

taken as (
    update reltask.leases as lease
    set term = free.term + case when free.won_before then 0 else 1 end,
        acquired_at = case when free.won_before then lease.acquired_at else parameters.now end,
        metadata = case when free.won_before then lease.metadata else '{}' end,
        holder = :holder::text,
        acquisition = :acquisition::uuid,
        heartbeat_at = parameters.now,
        ttl_ms = :ttl_ms::bigint,
        expires_at = parameters.now + parameters.ttl
    from free
    cross join parameters
    where lease.name = free.name
    returning lease.term, lease.expires_at
),

made as (
    insert into reltask.leases (
        name, holder, acquisition, term, acquired_at, heartbeat_at, ttl_ms, expires_at
    )
    select :lease::text, :holder::text, :acquisition::uuid, 1, parameters.now, parameters.now,
           :ttl_ms::bigint, parameters.now + parameters.ttl
    from parameters
    where not exists (select from reltask.leases where name = :lease::text)
      and pg_try_advisory_xact_lock(hashtextextended('reltask.leases ' || :lease::text, 0::bigint))
    on conflict do nothing
    returning term, expires_at
),

won as materialized (
    select term, expires_at from taken
    union all
    select term, expires_at from made
),

others as materialized (
    select count(*) as waiting, count(*) filter (where waiter.holder < :holder::text) as rank
    from reltask.lease_waiters as waiter
    where waiter.name = :lease::text and waiter.holder <> :holder::text
      and waiter.waiting_until > (select now from parameters)
),

-- Refused: this candidate waits, if it wants to. A wait that lasts long enough is not written.
waits_on as (
    update reltask.lease_waiters as waiter
    set waiting_until = parameters.now + :waits::interval
    from parameters
    where waiter.name = :lease::text
      and waiter.holder = (
          select mine.holder
          from reltask.lease_waiters as mine
          where mine.name = :lease::text and mine.holder = :holder::text
            and mine.waiting_until < parameters.now + :waits::interval / 2::float8
            and not exists (select from won)
          for update skip locked
      )
),

waits_first as (
    insert into reltask.lease_waiters (name, holder, waiting_until)
    select :lease::text, :holder::text, parameters.now + :waits::interval
    from parameters
    where :waits::interval is not null
      and not exists (select from won)
      and not exists (
          select from reltask.lease_waiters where name = :lease::text and holder = :holder::text
      )
    on conflict do nothing
),

-- Acquired: the holder does not wait any more, and expired waits are removed.
waits_no_more as (
    delete from reltask.lease_waiters as waiter
    using (
        select over.name, over.holder
        from reltask.lease_waiters as over
        where over.name = :lease::text
          and (over.holder = :holder::text or over.waiting_until <= (select now from parameters))
          and exists (select from won)
        for update skip locked
    ) as over
    where waiter.name = over.name and waiter.holder = over.holder
)

select won.term, parameters.now,
       coalesce(won.expires_at, seen.expires_at, parameters.now) as expires_at,
       case when won.term is null then others.rank else 0 end as rank,
       case when won.term is null then others.waiting + 1 else 1 end as waiting
from parameters
cross join others
left join won on true
left join reltask.leases as seen on seen.name = :lease::text;
