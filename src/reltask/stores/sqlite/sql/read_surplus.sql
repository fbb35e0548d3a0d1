-- Purpose       the time before which ledger rows are beyond the number to keep; nothing where there are fewer rows.
-- Precondition  none. Reads as many entries of the index as rows are kept, so ask seldom: what was beyond the number
--               once stays so, because newer rows only become more.
-- Lock order    none: reads the last committed state.

select finished_at
  from reltask_runs
 order by finished_at desc
 limit 1 offset max(:most, 1) - 1;
