-- Purpose       Claim up to :limit due jobs that have limits, and say when to ask again.
-- Precondition  As for claim_jobs.sql; and each of the job's keys has a free place, and a token if
--               it has a rate. A function that resumes needs no token.
-- Lock order    Marks, which are skipped if they are locked; then the keys in order, which are
--               waited for; then the jobs, which are skipped if they are locked. Only this
--               statement and the maintenance lock keys, each in a transaction of its own. Waits
--               :patience for a key, then fails (55P03); with :skips it skips keys that are locked.
-- Returns       As claim_jobs.sql. The first row has the time, the first mark of a limit that this
--               worker may take, and whether marks are left that only other workers may take.
-- Parameters    :patience is a length for lock_timeout.
-- See           SQL.md: nullable now, materialized CTE, skip locked, filtered index, limit, delay
--               in seconds, generated column, paused lanes, lock timeout, exact types, hash join.
--
-- The statement looks at keys that have a mark. Places are counted in the locked row of the key: an
-- end is a mark, which is counted here once, by the statement that removes it. So the number of
-- claims never exceeds the limit, whatever the snapshot shows.
--
-- Tokens go by the time after the locks, and so does locked_at. The time of the statement may be
-- older than the last count of a key: time that has been counted would be counted again.
--
-- The jobs are from the snapshot, which is older than the locks. If another claim has looked at a
-- key in between (seq), it may have removed the mark of a job that the snapshot does not have: the
-- key is marked again. So it is if jobs were left although there is room.
--
-- A job that has several keys waits at one of them (limit_key). If another one has no room, it goes
-- to wait there, so that it stands in the way of no job that could run, and so that the end that
-- makes room finds it. Its rank at each key counts all that come before it, whether they are
-- claimed or not: that may claim fewer than fit, never more; the first of all is claimed.

-- A key that another session keeps locked must not stall the others: the statement is sent again
-- with :skips. The marks of such a key stay, and so do the jobs that need it.

with recursive
parameters as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now,
           set_config('lock_timeout', :patience::text, true) as lock_timeout,
           array(
               select name
               from pg_catalog.unnest(:queues::text[]) as names (name)
               where name not in (select name from reltask.pauses where kind = 'queue')
           ) as queues,
           array(
               select name
               from pg_catalog.unnest(:tasks::text[]) as names (name)
               where name not in (select name from reltask.pauses where kind = 'task')
           ) as tasks
),

marked_lanes as (
    (
        select mark.queue, mark.task
        from reltask.marks as mark
        where (mark.queue, mark.task) > ('', '')
        order by mark.queue, mark.task
        limit 1
    )
    union all
    select following.queue, following.task
    from marked_lanes
    cross join lateral (
        select mark.queue, mark.task
        from reltask.marks as mark
        where (mark.queue, mark.task) > (marked_lanes.queue, marked_lanes.task)
        order by mark.queue, mark.task
        limit 1
    ) as following
),

-- Marks without a queue are for all workers: places or tokens became free.
my_lanes as materialized (
    select lane.queue, lane.task
    from marked_lanes as lane
    cross join parameters
    where lane.queue = ''
       or lane.queue = any (parameters.queues) and lane.task = any (parameters.tasks)
),

-- The first due marks of each lane.
picked as materialized (
    select mark.ctid as place, mark.seq, mark.name as key, mark.freed
    from my_lanes as lane
    cross join lateral (
        select mark.ctid, mark.seq, mark.name, mark.freed
        from reltask.marks as mark
        where mark.queue = lane.queue and mark.task = lane.task
          and mark.at <= (select now from parameters)
        order by mark.queue, mark.task, mark.at, mark.seq
        limit 2 * :limit::integer + 10
        for update of mark skip locked
    ) as mark
),

-- If there may be more, all marks of these keys at once: those of a full key must not keep a worker
-- with few places from the marks behind them.
further as materialized (
    select mark.ctid as place, mark.seq, mark.name as key, mark.freed
    from (select distinct key from picked) as flood
    cross join my_lanes as lane
    cross join lateral (
        select mark.ctid, mark.seq, mark.name, mark.freed
        from reltask.marks as mark
        where mark.kind = 'limit' and mark.name = flood.key
          and mark.queue = lane.queue and mark.task = lane.task
          and mark.at <= (select now from parameters)
        limit 1000
        for update of mark skip locked
    ) as mark
    where (select count(*) from picked) >= 2 * :limit::integer + 10
),

taken as materialized (
    select place, seq, key, freed
    from picked
    union
    select place, seq, key, freed
    from further
),

-- What there seems to be, to know how many jobs to look at.
wanted as materialized (
    select marked.key, marked.freed, counter.seq,
           least(
               coalesce(rule.running, 1000000) - coalesce(counter.running, 0) + marked.freed,
               case when rule.name is null then 0 else :limit::integer end
           ) as room,
           case when rule.rate_count is null then :limit::integer
                when counter.key is null then least(rule.burst, :limit::integer)
                else least(
                    floor(
                        counter.tokens + greatest(
                            extract(epoch from parameters.now - counter.refilled_at)::float8, 0
                        ) * rule.rate_count::float8 * 1000::float8 / rule.rate_period_ms::float8
                    ),
                    rule.burst::float8, :limit::float8
                )::integer
           end as tokens
    from (select key, sum(freed)::integer as freed from taken group by key) as marked
    cross join parameters
    left join reltask.limit_keys as counter on counter.key = any (array[marked.key])
    left join reltask.limits as rule on rule.name = split_part(marked.key, ':', 1)
),

-- The lanes of jobs at these keys, as in claim_jobs.sql.
job_lanes as (
    select wanted.key, wanted.room, wanted.tokens, head.*
    from wanted
    cross join lateral (
        select job.isolated, job.suspended, job.queue, job.task, job.priority, job.due_at
        from reltask.jobs as job
        where job.limit_key = wanted.key
          and job.locked_by is null and job.paused_at is null and job.dead_at is null
          and job.limit_key is not null
        order by job.limit_key, job.isolated, job.suspended, job.queue, job.task, job.priority,
                 job.due_at
        limit 1
    ) as head
    where wanted.room > 0
    union all
    select lane.key, lane.room, lane.tokens, head.*
    from job_lanes as lane
    cross join lateral (
        select job.isolated, job.suspended, job.queue, job.task, job.priority, job.due_at
        from reltask.jobs as job
        where job.limit_key = lane.key
          and (job.isolated, job.suspended, job.queue, job.task, job.priority)
              > (lane.isolated, lane.suspended, lane.queue, lane.task, lane.priority)
          and job.locked_by is null and job.paused_at is null and job.dead_at is null
          and job.limit_key is not null
        order by job.limit_key, job.isolated, job.suspended, job.queue, job.task, job.priority,
                 job.due_at
        limit 1
    ) as head
),

due_lanes as materialized (
    select lane.*,
           lane.queue = any (parameters.queues) and lane.task = any (parameters.tasks)
               as is_known,
           lane.queue = any (parameters.queues) and lane.task = any (parameters.tasks)
               and (not lane.isolated or :isolated::boolean) as is_mine,
           case when lane.isolated and lane.suspended then 1
                when lane.isolated then least(lane.tokens, 1)
                when lane.suspended then lane.room
                else least(lane.room, lane.tokens) end as most
    from job_lanes as lane
    cross join parameters
    where lane.due_at <= parameters.now
),

found as materialized (
    select lane.key, lane.isolated, lane.suspended, lane.queue, lane.task, lane.priority,
           job.due_at, job.id, coalesce(job.limits, array[job.limit_key]) as keys
    from due_lanes as lane
    cross join lateral (
        select job.id, job.due_at, job.limits, job.limit_key
        from reltask.jobs as job
        where (job.limit_key, job.isolated, job.suspended, job.queue, job.task, job.priority,
               job.due_at)
              >= (lane.key, lane.isolated, lane.suspended, lane.queue, lane.task, lane.priority,
                  '-infinity'::timestamptz)
          and (job.limit_key, job.isolated, job.suspended, job.queue, job.task, job.priority,
               job.due_at)
              <= (lane.key, lane.isolated, lane.suspended, lane.queue, lane.task, lane.priority,
                  (select now from parameters))
          and job.locked_by is null and job.paused_at is null and job.dead_at is null
          and job.limit_key is not null
        order by job.limit_key, job.isolated, job.suspended, job.queue, job.task, job.priority,
                 job.due_at
        limit greatest(lane.most, 0)
    ) as job
    where lane.is_mine
),

-- At most one isolated job. The first :oldest places go to the jobs that have waited longest.
heads as materialized (
    select found.*,
           case when row_number() over (order by due_at, id) <= :oldest::integer then -1
                else priority end as turn
    from found
    where not isolated
       or id = (select id from found where isolated order by priority, due_at, id limit 1)
),

needed as materialized (
    select key from wanted
    union
    select key.key from heads cross join lateral pg_catalog.unnest(heads.keys) as key (key)
),

awaited as materialized (
    select counter.key, counter.running, counter.tokens, counter.refilled_at, counter.seq
    from reltask.limit_keys as counter
    where not :skips::boolean and counter.key = any (array(select key from needed))
    order by counter.key
    for update of counter
),

free as materialized (
    select counter.key, counter.running, counter.tokens, counter.refilled_at, counter.seq
    from reltask.limit_keys as counter
    where :skips::boolean and counter.key = any (array(select key from needed))
    order by counter.key
    for update of counter skip locked
),

locked as materialized (
    select * from awaited
    union all
    select * from free
),

skipped as materialized (
    select counter.key
    from reltask.limit_keys as counter
    where :skips::boolean and counter.key = any (array(select key from needed))
      and counter.key not in (select key from locked)
),

moment as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
    from (select count(*) from locked) as once_locked
),

-- What there is. Without a rate, tokens are counted as if there were plenty.
rooms as materialized (
    select needed.key, rule.name, rule.rate_count, rule.rate_period_ms,
           wanted.key is not null as is_wanted,
           locked.key is not null as is_counted,
           locked.seq is distinct from wanted.seq as has_moved,
           coalesce(wanted.freed, 0) as freed,
           case when rule.name is null then 0
                else coalesce(rule.running, 1000000) - coalesce(locked.running, 0)
                    + coalesce(wanted.freed, 0) end as room,
           case when rule.rate_count is null then 1000000::float8
                when locked.key is null then rule.burst::float8
                else least(
                    locked.tokens + greatest(
                        extract(epoch from moment.now - locked.refilled_at)::float8, 0
                    ) * rule.rate_count::float8 * 1000::float8 / rule.rate_period_ms::float8,
                    rule.burst::float8
                ) end as tokens,
           -- Jobs that wait at a key that is not looked at now go first.
           wanted.key is null and (
               select job.id
               from reltask.jobs as job
               where job.limit_key = needed.key
                 and job.locked_by is null and job.paused_at is null and job.dead_at is null
                 and job.limit_key is not null
               order by job.limit_key, job.isolated, job.suspended, job.queue, job.task,
                        job.priority, job.due_at
               limit 1
           ) is not null as has_queue
    from needed
    full join wanted on wanted.key = needed.key
    full join locked on locked.key = needed.key
    cross join moment
    left join reltask.limits as rule on rule.name = split_part(needed.key, ':', 1)
    where needed.key not in (select key from skipped)
),

-- The jobs as they are now: those of the snapshot may have been claimed, or have moved.
held as materialized (
    select heads.*
    from heads
    cross join lateral (
        select
        from reltask.jobs as job
        where job.id = any (array[heads.id])
          -- no other index may serve
          and (
              job.limit_key = heads.key
              and coalesce(job.limits, array[job.limit_key]) operator(pg_catalog.=) heads.keys
              and job.queue = heads.queue
              and job.isolated = heads.isolated and job.suspended = heads.suspended
              and job.due_at <= (select now from parameters)
              and job.locked_by is null and job.paused_at is null and job.dead_at is null
          ) is true
          -- once all keys are locked
          and (select count(*) from rooms) > 0
        for update of job skip locked
    ) as job
    where not exists (select from skipped where skipped.key = any (heads.keys))
),

pairs as materialized (
    select pair.*,
           bool_or(pair.is_blocked or pair.is_new) over (partition by pair.id) as is_kept
    from (
        select held.id, held.key as gate, held.turn, held.due_at, held.suspended, key.key,
               rooms.room, rooms.tokens,
               rooms.room <= 0 or not held.suspended and rooms.tokens < 1::float8
                   or rooms.has_queue
                       and key.nth > pg_catalog.array_position(held.keys, held.key)
                   as is_blocked,
               not rooms.is_counted and pg_catalog.cardinality(held.keys) > 1 as is_new
        from held
        cross join lateral pg_catalog.unnest(held.keys) with ordinality as key (key, nth)
        full join rooms on rooms.key = key.key
        where (held.id is null) is not true and (rooms.key is null) is not true
    ) as pair
),

-- The key that a job has to wait at.
blocks as materialized (
    select distinct on (pairs.id)
           pairs.id, pairs.gate, pairs.key, pairs.suspended, pairs.room > 0 as has_room
    from pairs
    where pairs.is_blocked
    order by pairs.id, pairs.room, pairs.key
),

ranks as (
    select pairs.id, pairs.turn, pairs.due_at, pairs.suspended, pairs.room, pairs.tokens,
           row_number() over by_key as nth,
           count(*) filter (where not pairs.suspended) over by_key as token_nth
    from pairs
    where not pairs.is_kept
    window by_key as (
        partition by pairs.key
        order by pairs.turn, pairs.due_at, pairs.id
        rows unbounded preceding
    )
),

chosen as materialized (
    select id
    from ranks
    group by id, turn, due_at
    having bool_and(nth <= room and (suspended or token_nth::float8 <= floor(tokens)))
    order by turn, due_at, id
    limit :limit::integer
),

counts as materialized (
    select pairs.key, count(*)::integer as places,
           count(*) filter (where not pairs.suspended)::integer as tokens
    from pairs
    where (pairs.id in (select id from chosen)) is true
    group by pairs.key
),

-- What each key gives away.
given as materialized (
    select rooms.*, coalesce(counts.places, 0) as places,
           coalesce(counts.tokens, 0)::float8 as spent
    from rooms
    full join counts on counts.key = rooms.key
),

-- Keys that are counted for the first time. If another claim is doing so, its key is left to the
-- next look: the marks stay, and nothing is claimed.
added as (
    insert into reltask.limit_keys (key, name, running, tokens, refilled_at, seq)
    select given.key, given.name, given.places - given.freed,
           case when given.rate_count is null then 0::float8 else given.tokens - given.spent end,
           moment.now, 1
    from given
    cross join moment
    where not given.is_counted and given.name is not null
    order by given.key
    on conflict do nothing
    returning key
),

folded as (
    update reltask.limit_keys as counter
    set running = counter.running - given.freed + given.places,
        tokens = case when given.rate_count is null then counter.tokens
                      else given.tokens - given.spent end,
        refilled_at = moment.now,
        seq = counter.seq + 1
    from given
    cross join moment
    where given.is_counted and counter.key = any (array[given.key])
      and (
          given.is_wanted or given.places > 0
          or given.key in (select key from blocks)
      )
),

-- Of these keys the marks are used up, and jobs are claimed.
served as materialized (
    select key from rooms where is_counted or name is null
    union all
    select key from added
),

claimed as (
    update reltask.jobs as job
    set locked_by = :worker::text,
        claim_token = :token::uuid,
        locked_at = moment.now,
        heartbeat_at = moment.now,
        claim_timeout_ms = case when job.lock_timeout_ms not between 1 and 3155760000000
                                then 3155760000001
                                else coalesce(job.lock_timeout_ms, :lock_timeout_ms::bigint) end,
        lock_expires_at = moment.now
            + case when job.lock_timeout_ms between 1 and 3155760000000 then job.lock_timeout_ms
                   else :lock_timeout_ms::bigint end::float8 * interval '1 millisecond',
        fence = job.fence + 1,
        attempt = job.attempt + 1,
        slot_started_at = coalesce(job.slot_started_at, moment.now),
        suspended = false,
        -- unchanged, see SQL.md: generated column
        not_before = job.not_before
    from moment
    where job.id = any (array(
              select held.id
              from held
              where (held.id in (select id from chosen)) is true
                and (held.key in (select key from served)) is true
          ))
      and job.locked_by is null
    returning job.id, job.fence, job.task, job.key, job.args, job.queue, job.priority, job.schedule,
              job.slot_no, job.next_run_time, job.due_at, job.slot_started_at, job.locked_at,
              job.attempt, job.max_attempts, job.claim_timeout_ms, job.isolated, job.steps,
              job.parent_id, job.progress, job.headers, job.cancel_slot
),

moved as (
    update reltask.jobs as job
    set limit_key = blocks.key,
        not_before = job.not_before
    from blocks
    where job.id = any (array[blocks.id]) and blocks.key <> blocks.gate
),

-- Rows that are locked stay where they are.
removed as (
    delete from reltask.marks as mark
    using taken
    where mark.ctid = taken.place
      and (taken.key in (select key from served)) is true
),

-- What is left of each key: room, tokens, and when the next token comes.
rests as materialized (
    select given.key, given.is_wanted, given.has_moved and given.is_counted as has_moved,
           given.room - given.places as room,
           case when given.tokens - given.spent >= 1::float8
                then moment.now
                else moment.now + interval '1 microsecond' + (
                    (1::float8 - given.tokens + given.spent)
                    * given.rate_period_ms::float8 / given.rate_count::float8
                ) * interval '1 millisecond' end as token_at
    from given
    cross join moment
    where given.is_counted or given.key in (select key from added)
),

seen as materialized (
    select found.key, found.isolated, found.suspended, found.queue, found.task, found.priority,
           count(*) as jobs,
           count(*) filter (
               where found.id in (select id from chosen)
                  or found.id in (select id from blocks where blocks.key <> blocks.gate)
           ) as gone
    from found
    group by found.key, found.isolated, found.suspended, found.queue, found.task, found.priority
),

-- The due lanes that still have jobs, as far as is known.
unserved as materialized (
    select lane.key, lane.isolated, lane.suspended, lane.queue, lane.task, lane.is_known,
           lane.is_mine,
           seen.jobs > 0 and (lane.key in (select key from held)) is not true as is_locked
    from due_lanes as lane
    full join seen
        on seen.key = lane.key and seen.isolated = lane.isolated
        and seen.suspended = lane.suspended and seen.queue = lane.queue
        and seen.task = lane.task and seen.priority = lane.priority
    where not lane.is_mine or seen.gone < seen.jobs or coalesce(seen.jobs, 0) >= lane.most
),

again as materialized (
    -- A key with room, and jobs that this worker could run.
    select '' as queue, 'limit' as task, rests.key,
           case when bool_and(unserved.is_locked)
                then moment.now + interval '100 milliseconds'
                when bool_or(unserved.suspended) then moment.now
                else rests.token_at end as at
    from (select * from rests where room > 0) as rests
    full join (select * from unserved where is_mine) as unserved on unserved.key = rests.key
    cross join moment
    where (rests.key is null) is not true and (unserved.key is null) is not true
    group by rests.key, rests.token_at, moment.now
    union all
    -- One that another claim has looked at since the snapshot.
    select '', 'limit', rests.key, moment.now
    from rests
    cross join moment
    where rests.is_wanted and rests.has_moved and rests.room > 0
    union all
    -- One that jobs have gone to, although it has room: for a token, or behind other jobs.
    select distinct '', 'limit', blocks.key,
           case when blocks.suspended then moment.now
                else coalesce(rests.token_at, moment.now) end
    from (select * from blocks where has_room and key <> gate) as blocks
    full join rests on rests.key = blocks.key
    cross join moment
    where (blocks.key is null) is not true
    union all
    -- Jobs that only other workers can run, unless a mark will find them. One for a job that is due
    -- later will not.
    select distinct unserved.queue, unserved.task, rests.key, look.at
    from (select * from rests where room > 0) as rests
    full join (select * from unserved where not is_mine) as unserved on unserved.key = rests.key
    cross join moment
    cross join lateral (
        select case when unserved.is_known then moment.now + interval '1 second'
                    else rests.token_at end as at
    ) as look
    where (rests.key is null) is not true and (unserved.key is null) is not true
      and (
          rests.has_moved or not exists (
              select
              from reltask.marks as mark
              where mark.kind = 'limit' and mark.name = rests.key
                and mark.queue = unserved.queue and mark.task = unserved.task
                and mark.at <= look.at + interval '1 second'
                and mark.seq not in (select seq from taken)
          )
      )
),

marked as (
    insert into reltask.marks (queue, task, at, kind, name)
    select queue, task, at, 'limit', key
    from again
),

settled as materialized (
    select taken.seq
    from taken
    where (taken.key in (select key from rests)) is true
),

header as (
    select moment.now,
           least(
               (
                   select min(at)
                   from again
                   where queue = ''
                      or queue = any (parameters.queues) and task = any (parameters.tasks)
               ),
               (
                   select min(first.at)
                   from my_lanes as lane
                   cross join lateral (
                       select mark.at
                       from reltask.marks as mark
                       where mark.queue = lane.queue and mark.task = lane.task
                         and mark.seq not in (select seq from settled)
                       order by mark.queue, mark.task, mark.at
                       limit 1
                   ) as first
               )
           ) as limited_at,
           exists (
               select from again
               where queue <> ''
                 and not (queue = any (parameters.queues) and task = any (parameters.tasks))
           ) as marked
    from parameters
    cross join moment
)

select now, null::timestamptz as next_due, null::timestamptz as next_expiry, marked, limited_at,
       null::integer as fleet_rank, null::integer as fleet_size, null::integer as fleet_idle,
       null as id, null as fence, null as task, null as key, null as args,
       null as queue, null as priority, null as schedule, null as slot_no, null as next_run_time,
       null as due_at, null as slot_started_at, null as attempt, null as max_attempts,
       null as claim_timeout_ms, null as isolated, null as steps, null as has_parent,
       null as progress, null as headers, null as cancelled
from header
union all
(
    select null, null, null, null, null, null, null, null, id, fence, task, key, args, queue,
           priority, schedule, slot_no, next_run_time, nullif(due_at, next_run_time),
           nullif(slot_started_at, locked_at), attempt, max_attempts, claim_timeout_ms, isolated,
           nullif(steps, 0), parent_id is not null, progress, headers, cancel_slot = slot_no
    from claimed
    order by claimed.priority, claimed.due_at, claimed.id
);
