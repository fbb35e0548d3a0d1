-- Purpose       Read which jobs have, or had last, these keys of unique tasks.
-- Precondition  None.
-- Lock order    Locks nothing.
-- Returns       One row per key that was ever taken: task, key, and the job's id.
-- See           SQL.md: JSON batch.

select held.task, held.key, held.job_id as id
from json_each(:names) as given
join reltask_keys as held
    on held.task = json_extract(given.value, '$[0]')
    and held.key = json_extract(given.value, '$[1]');
