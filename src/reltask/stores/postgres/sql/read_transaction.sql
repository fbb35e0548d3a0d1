-- Purpose       Ask whether the open transaction is still the one that was begun.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row: true if it is. After a COMMIT or ROLLBACK the time differs, also if
--               another transaction is open by then.
-- Parameters    :began is what begin_transaction.sql returned.

select (extract(epoch from transaction_timestamp()) * 1000000::numeric)::bigint
       = :began::bigint as same;
