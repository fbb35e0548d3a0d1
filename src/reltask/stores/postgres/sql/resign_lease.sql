-- Purpose       Give a lease back; the row stays, so that the next term is higher.
-- Precondition  Term and acquisition still match.
-- Lock order    One row.
-- Returns       One row with the name, if the lease was given back.
-- See           SQL.md: nullable now.

update reltask.leases as lease
set holder = null,
    acquisition = null,
    expires_at = least(lease.expires_at, coalesce(:now::timestamptz, statement_timestamp()))
where lease.name = :lease::text and lease.term = :term::bigint
  and lease.acquisition = :acquisition::uuid
returning lease.name;
