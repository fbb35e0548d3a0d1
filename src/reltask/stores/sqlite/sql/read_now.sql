-- Purpose       the time of a transaction, in microseconds: the host's clock, to the millisecond. Every other statement
--               of the transaction gets it as :now, so that all that one verb writes bears one time. Tests set it.
-- Precondition  none.
-- Lock order    none.

select coalesce(:now, cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000) as now;
