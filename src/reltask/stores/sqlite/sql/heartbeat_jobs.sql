-- Purpose       renew a worker's claims, and its own sign of life; name the rows that it owns unknowingly.
-- Precondition  id, owner and fence. A row that is missing from the answer is suspect, not lost.
-- Lock order    the whole file: one short write transaction.
--               The plus before locked_by keeps SQLite to the primary key: one seek per row of the batch.

with batch as (
    select json_extract(value, '$[0]') as id, json_extract(value, '$[1]') as fence from json_each(:holds)
)
update reltask_jobs
   set heartbeat_at    = :now,
       lock_expires_at = :now + claim_timeout_ms * 1000
  from batch
 where reltask_jobs.id = batch.id
   and reltask_jobs.fence = batch.fence
   and +reltask_jobs.locked_by = :worker
returning id, fence;

update reltask_workers
   set heartbeat_at = :now, alive_until = :now + :alive_for, dead_at = null
 where id = :worker;

-- Strays: rows of this worker that it did not name. The answer to their claim was lost.
select id, fence, claim_token
  from reltask_jobs
 where locked_by = :worker
   and (id, fence) not in (select json_extract(value, '$[0]'), json_extract(value, '$[1]') from json_each(:holds));
