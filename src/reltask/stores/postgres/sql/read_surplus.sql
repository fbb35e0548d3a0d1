-- Purpose       the time before which ledger rows are beyond the number to keep; nothing where there are fewer rows.
-- Precondition  none; reads only. Reads as many entries of the index as rows are kept, so ask seldom: what was beyond
--               the number once stays so, because newer rows only become more. A table whose size has no room for so
--               many rows, at no less than 100 bytes each, is not read at all.
-- Lock order    no locks.

select run.finished_at
from reltask.runs as run
where (select pg_relation_size('reltask.runs')) / 100 >= :most::bigint
order by run.finished_at desc
limit 1 offset greatest(:most::bigint, 1) - 1;
