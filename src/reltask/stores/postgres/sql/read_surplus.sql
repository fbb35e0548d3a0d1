-- Purpose       Find the time before which ledger rows exceed the number to keep.
-- Precondition  None. Reads :most entries of an index, so it is called seldom: rows that exceed the
--               number once always do, because only newer rows are added. A table that is too small
--               for :most rows, at 100 bytes each, is not read at all.
-- Lock order    Locks nothing.
-- Returns       One row, or none if there are fewer than :most rows.

select run.finished_at
from reltask.runs as run
where (select pg_relation_size('reltask.runs'::regclass)) / 100 >= :most::bigint
order by run.finished_at desc
limit 1 offset greatest(:most::bigint, 1) - 1;
