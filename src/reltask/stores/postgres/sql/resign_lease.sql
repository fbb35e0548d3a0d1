-- Purpose       give a lease back; the row stays, so that the next term is a higher one.
-- Precondition  term and acquisition still match.
-- Lock order    one row.

update reltask.leases as lease
set holder = null,
    acquisition = null,
    expires_at = least(lease.expires_at, coalesce(:now::timestamptz, statement_timestamp()))
where lease.name = :lease::text and lease.term = :term::bigint and lease.acquisition = :acquisition::uuid
returning lease.name;
