-- Purpose       Find the time before which ledger rows exceed the number to keep.
-- Precondition  None. Reads :most entries of an index, so it is called seldom: rows that exceed the
--               number once always do, because only newer rows are added.
-- Lock order    Locks nothing.
-- Returns       One row, or none if there are fewer than :most rows.

select finished_at
from reltask_runs
order by finished_at desc
limit 1 offset max(:most, 1) - 1;
