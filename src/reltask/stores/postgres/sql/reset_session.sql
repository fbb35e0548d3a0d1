-- Purpose       Remove what a task has left in its session, before another task uses it.
-- Precondition  No transaction is open. Sent as one text: one round trip, one transaction.
-- Lock order    Releases the session's advisory locks.
-- Returns       No rows of interest.
--
-- DISCARD ALL would also remove the statements that the driver has prepared, and cannot be sent
-- together with anything else. So statements prepared by SQL are removed one by one.

select pg_advisory_unlock_all();
close all;
unlisten *;
reset session authorization;
reset role;
reset all;
discard temp;
discard sequences;

do $$
declare
    prepared name;
begin
    for prepared in select name from pg_prepared_statements where from_sql loop
        execute pg_catalog.format('deallocate %I', prepared);
    end loop;
end
$$;
