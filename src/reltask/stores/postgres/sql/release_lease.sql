-- Purpose       take a lease away from its holder, by a person's order.
-- Precondition  held, under the term that the person saw.
-- Lock order    one row.

update reltask.leases as lease
set holder = null,
    acquisition = null,
    expires_at = least(lease.expires_at, coalesce(:now::timestamptz, statement_timestamp()))
where lease.name = :lease::text and lease.term = :term::bigint and lease.holder is not null
returning lease.name;
