-- Purpose       Take a lease away from its holder, on an operator's order.
-- Precondition  Held, under the term that the operator has seen.
-- Lock order    One row.
-- Returns       One row with the name, if the lease was released.
-- See           SQL.md: nullable now.

update reltask.leases as lease
set holder = null,
    acquisition = null,
    expires_at = least(lease.expires_at, coalesce(:now::timestamptz, statement_timestamp()))
where lease.name = :lease::text and lease.term = :term::bigint and lease.holder is not null
returning lease.name;
