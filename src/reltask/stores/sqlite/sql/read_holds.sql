-- Purpose       which of these claims the committed rows show as this worker's.
-- Precondition  none.
-- Lock order    none: reads the last committed state.
--               The plus before locked_by keeps SQLite to the primary key: one seek per row of the batch.

select jobs.id, jobs.fence
  from json_each(:holds) as held
  join reltask_jobs as jobs on jobs.id = json_extract(held.value, '$[0]')
 where jobs.fence = json_extract(held.value, '$[1]')
   and +jobs.locked_by = :worker;
