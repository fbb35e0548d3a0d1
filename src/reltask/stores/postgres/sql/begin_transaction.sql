-- Purpose       the first statement of a task's own transaction: bound how long it may wait or idle.
-- Precondition  inside a transaction: the settings end with it.
-- Lock order    no locks.

select set_config('statement_timeout', :timeout_ms::text, true),
       set_config('idle_in_transaction_session_timeout', :timeout_ms::text, true),
       set_config('lock_timeout', :timeout_ms::text, true);
