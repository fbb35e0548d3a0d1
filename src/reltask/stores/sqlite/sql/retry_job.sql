-- Purpose       give a dead job a new set of attempts, due at once.
-- Precondition  dead.
-- Lock order    the whole file: one short write transaction.

update reltask_jobs
   set dead_at    = null,
       attempt    = 0,
       isolated   = 0,
       not_before = :now
 where id = :job_id
   and dead_at is not null
returning id;
