-- Purpose       First statement of a task's own transaction: limit how long it may wait or be idle.
-- Precondition  Inside a transaction: the settings end with it.
-- Lock order    Locks nothing.
-- Returns       One row: when the transaction began, in microseconds since 1970, and the settings.
--
-- The time tells one transaction from the next: see read_transaction.sql.

select (extract(epoch from transaction_timestamp()) * 1000000::numeric)::bigint as began,
       set_config('statement_timeout', :timeout_ms::text, true),
       set_config('idle_in_transaction_session_timeout', :timeout_ms::text, true),
       set_config('lock_timeout', :timeout_ms::text, true);
