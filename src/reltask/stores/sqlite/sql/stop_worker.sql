-- Mark a worker as stopped.
update reltask_workers set stopped_at = :now where id = :worker and stopped_at is null;
