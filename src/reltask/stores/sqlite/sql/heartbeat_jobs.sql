-- Purpose       renew a worker's claims, and its own sign of life; name the rows of claims that it lost sight of.
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

-- Strays: the answers to the claims with these tokens were lost. There are hardly ever any: the cross join looks at no job
-- then.
select job.id, job.fence
  from json_each(:tokens) as unanswered
 cross join reltask_jobs as job
 where job.locked_by = :worker
   and job.claim_token = unanswered.value;
