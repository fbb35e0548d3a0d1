"""The dashboard's reads: what each list holds, in which order, and where its next page begins."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest

from reltask.model.control import Pause, PauseKind
from reltask.model.job import Outcome, Release
from reltask.model.overview import Count
from reltask.model.screens import Cursor, ListedState, NewAction, Payload, RunSample
from tests.store.store_harness import (
    LOCK,
    START,
    StoreHarness,
    new_job,
    recurring,
    step,
    waiting,
    worker_record,
)
from tests.store.test_leases import asked
from tests.store.test_limits import claims, declare, jobs

MINUTE = timedelta(minutes=1)
FEW = 3


async def listed(harness: StoreHarness, state: ListedState, **filters: str) -> list[UUID]:
    """All ids of a list, read page by page, each of two rows."""
    found: list[UUID] = []
    after: Cursor | None = None
    while True:
        page = await harness.store.page_jobs(state, after=after, limit=2, **filters)
        found += [row.job.id for row in page.rows]
        after = page.next
        if after is None:
            return found
        assert len(page.rows) == 2


async def die(harness: StoreHarness, error: str = "ValueError: no", **fields: object) -> UUID:
    """A job that failed at its only attempt."""
    claim = await harness.claimed(new_job(max_attempts=1, **fields))
    assert await harness.fail(claim, error=error)
    return claim.job_id


# Pages of jobs


async def test_due_jobs_are_listed_by_age_over_all_lanes(harness: StoreHarness) -> None:
    """The oldest first, whatever queue, task and priority; ties by id; each once over all pages."""
    jobs = [
        new_job(task=task, queue=queue, priority=priority, run_at=START - nth * MINUTE)
        for nth, (task, queue, priority) in enumerate(
            [("a", "x", 5), ("b", "x", 1), ("a", "y", 9), ("a", "x", 0), ("c", "y", 5)]
        )
    ]
    same = [new_job(task="a", queue="x", run_at=START - 9 * MINUTE) for _ in range(5)]
    await harness.add(*jobs, *same, new_job(delay=MINUTE))
    found = await listed(harness, ListedState.DUE)
    assert set(found[:5]) == {job.id for job in same}
    assert found[5:] == [job.id for job in reversed(jobs)]
    assert len(set(found)) == len(found)


async def test_later_jobs_are_listed_by_time(harness: StoreHarness) -> None:
    """The soonest first; neither due nor suspended ones."""
    jobs = [new_job(delay=nth * MINUTE) for nth in (3, 1, 2)]
    await harness.suspended(waiting())
    await harness.add(*jobs, new_job(run_at=START))
    assert await listed(harness, ListedState.LATER) == [jobs[1].id, jobs[2].id, jobs[0].id]


async def test_suspended_jobs_have_a_list_of_their_own(harness: StoreHarness) -> None:
    """By the time at which they wake."""
    late = await harness.suspended(waiting(), wake_at=START + 2 * MINUTE)
    soon = await harness.suspended(waiting(), wake_at=START + MINUTE)
    assert await listed(harness, ListedState.SUSPENDED) == [soon.job_id, late.job_id]
    assert await harness.store.pause_job(soon.job_id)
    assert await listed(harness, ListedState.SUSPENDED) == [late.job_id]


async def test_claimed_jobs_are_listed_by_the_age_of_the_claim(harness: StoreHarness) -> None:
    """The longest first."""
    claims = []
    for _ in range(FEW):
        claims.append(await harness.claimed())
        harness.now.advance(seconds=1)
    assert await listed(harness, ListedState.CLAIMED) == [claim.job_id for claim in claims]


async def test_paused_and_dead_jobs_are_listed_latest_first(harness: StoreHarness) -> None:
    """Each by the time of what happened to it; a dead job is in one list only."""
    dead, paused = [], []
    for _ in range(FEW):
        dead.append(await die(harness))
        harness.now.advance(seconds=1)
    for job_id in await harness.add(*[new_job() for _ in range(FEW)]):
        assert await harness.store.pause_job(job_id)
        paused.append(job_id)
        harness.now.advance(seconds=1)
    assert await listed(harness, ListedState.DEAD) == dead[::-1]
    assert await listed(harness, ListedState.PAUSED) == paused[::-1]
    assert await listed(harness, ListedState.DUE) == []


@pytest.mark.parametrize("state", list(ListedState))
async def test_a_list_can_be_filtered(harness: StoreHarness, state: ListedState) -> None:
    """By task, by queue, and by both."""
    wanted = None
    for task in ("a", "b"):
        for queue in ("x", "y"):
            job = new_job(task=task, queue=queue, max_attempts=1, delay=MINUTE if state is ListedState.LATER else None)
            await harness.add(job)
            wanted = job.id
            if state in (ListedState.CLAIMED, ListedState.DEAD, ListedState.SUSPENDED):
                claim = await harness.claim_one(tasks=[task], queues=[queue])
                if state is ListedState.DEAD:
                    assert await harness.fail(claim)
                if state is ListedState.SUSPENDED:
                    assert await harness.record(claim, waiting())
                    assert await harness.suspend(claim)
            if state is ListedState.PAUSED:
                assert await harness.store.pause_job(job.id)
    assert len(await listed(harness, state)) == 4
    assert len(await listed(harness, state, task="a")) == 2
    assert len(await listed(harness, state, queue="y")) == 2
    assert await listed(harness, state, task="b", queue="y") == [wanted]
    assert await listed(harness, state, task="nothing") == []


async def test_a_row_says_what_it_is_ordered_by(harness: StoreHarness) -> None:
    """The time of the list, beside the job."""
    job_id = await die(harness)
    (row,) = (await harness.store.page_jobs(ListedState.DEAD)).rows
    assert (row.at, row.job.id, row.job.state) == (START, job_id, "dead")


async def test_jobs_are_found_by_key(harness: StoreHarness) -> None:
    """Of every task that has one, and no others."""
    jobs = [new_job(task=task, key=key) for task, key in [("a", "k"), ("b", "k"), ("c", "other"), ("d", "k")]]
    await harness.add(*jobs, new_job(), recurring(task="e"))
    found = await harness.store.find_jobs("k")
    assert [job.id for job in found] == [jobs[0].id, jobs[1].id, jobs[3].id]
    assert len(await harness.store.find_jobs("k", limit=1)) == 1
    assert await harness.store.find_jobs("nothing") == []


async def test_schedules_are_listed_by_task(harness: StoreHarness) -> None:
    """Recurring jobs only, page by page."""
    jobs = [recurring(task=task, key=key) for task, key in [("b", "1"), ("a", None), ("b", "2"), ("c", None)]]
    await harness.add(*jobs, new_job(key="one-off"))
    found, after = [], None
    while page := await harness.store.list_schedules(after=after, limit=2):
        found += page
        after = page[-1].task, page[-1].id
    assert [job.task for job in found] == ["a", "b", "b", "c"]
    assert {job.id for job in found} == {job.id for job in jobs}


# Dead letters, samples, payloads


async def test_dead_letters_come_with_the_end_of_their_error(harness: StoreHarness) -> None:
    """The latest first; the error is cut from the front, because its end says what was raised."""
    first = await die(harness, "Traceback\n" + "x" * 100 + "\nValueError: order 17 of 'ada' is gone")
    harness.now.advance(seconds=1)
    second = await die(harness, task="other", queue="mail")
    newest, oldest = await harness.store.list_dead_errors(characters=60)
    assert (newest.id, newest.task, newest.queue, newest.error) == (second, "other", "mail", "ValueError: no")
    assert (oldest.id, oldest.fence, oldest.dead_at, oldest.outcome) == (first, 1, START, "failed")
    assert oldest.error is not None
    assert len(oldest.error) == 60
    assert oldest.reason == "ValueError: order 17 of 'ada' is gone"
    assert oldest.signature == "ValueError: order N of '…' is gone"
    assert len(await harness.store.list_dead_errors(most=1)) == 1


async def test_a_sample_has_lengths_and_lateness(harness: StoreHarness) -> None:
    """Newest first, no older than asked for; a run that no worker claimed is none."""
    await harness.add(new_job(run_at=START - timedelta(seconds=4)))
    claim = await harness.claim_one()
    harness.now.advance(seconds=2)
    assert await harness.complete(claim)
    (skipped,) = await harness.add(new_job())
    assert await harness.store.discard_job(skipped)
    assert await harness.store.sample_runs(since=MINUTE) == [RunSample("greet", "default", "succeeded", 2.0, 4.0)]
    harness.now.advance(minutes=2)
    assert await harness.store.sample_runs(since=MINUTE) == []


async def test_the_payload_is_that_of_the_row(harness: StoreHarness) -> None:
    """Arguments and headers; None for a job that nothing knows."""
    (job_id,) = await harness.add(new_job(args='{"user": 1}', headers='{"tenant": "a"}'))
    assert await harness.store.read_payload(job_id) == Payload('{"user": 1}', '{"tenant": "a"}', "greet", "default", 5)
    assert await harness.store.read_payload(uuid4()) is None


# The log of actions


async def test_an_action_is_recorded_before_and_completed_after(harness: StoreHarness) -> None:
    """Once each, whatever is sent again."""
    action = NewAction(id=uuid4(), actor="ada", action="retry", target="job 1", seen="fence 3", jobs=2)
    await harness.store.record_action(action)
    await harness.store.record_action(action)
    (begun,) = await harness.store.list_actions()
    assert (begun.at, begun.actor, begun.seen, begun.jobs, begun.outcome) == (START, "ada", "fence 3", 2, None)
    assert await harness.store.end_action(action.id, outcome="done", changed=2)
    assert not await harness.store.end_action(action.id, outcome="refused", changed=0)
    (ended,) = await harness.store.list_actions()
    assert (ended.outcome, ended.changed) == ("done", 2)


async def test_actions_are_listed_latest_first(harness: StoreHarness) -> None:
    """Page by page, each once, also those of the same moment."""
    ids = [uuid4() for _ in range(5)]
    for nth, action_id in enumerate(ids):
        await harness.store.record_action(NewAction(id=action_id, actor="ada", action="retry", target="x"))
        harness.now.advance(seconds=nth % 2)
    found, after = [], None
    while page := await harness.store.list_actions(after=after, limit=2):
        found += page
        after = page[-1].at, page[-1].id
    assert {action.id for action in found} == set(ids)
    assert [action.at for action in found] == sorted((action.at for action in found), reverse=True)


# The overview


async def test_an_empty_database_has_an_empty_overview(harness: StoreHarness) -> None:
    """Nothing is missing, nothing fails."""
    overview = await harness.store.read_overview()
    assert overview.is_empty
    assert overview.now == START
    assert (overview.due, overview.running, overview.dead_jobs, overview.queues) == (Count(), 0, Count(), [])


async def test_the_overview_counts_lanes_by_queue_and_task(harness: StoreHarness) -> None:
    """Priorities and isolation are added up; the oldest due time is that of the queue."""
    await harness.add(
        new_job(task="a", queue="mail", priority=1, run_at=START - 2 * MINUTE),
        new_job(task="a", queue="mail", priority=9, run_at=START - 3 * MINUTE),
        new_job(task="b", queue="mail", delay=MINUTE),
        new_job(task="a", queue="web", run_at=START),
    )
    overview = await harness.store.read_overview()
    counted = [(lane.queue, lane.task, lane.due, lane.later) for lane in overview.lanes]
    assert counted == [
        ("mail", "a", Count(2), Count(0)),
        ("mail", "b", Count(0), Count(1)),
        ("web", "a", Count(1), Count(0)),
    ]
    assert overview.oldest_due("mail") == START - 3 * MINUTE
    assert overview.oldest_due("web") == START
    assert overview.oldest_due("nothing") is None
    assert (overview.due, overview.later, overview.queues) == (Count(3), Count(1), ["mail", "web"])


async def test_counting_stops_and_says_so(harness: StoreHarness) -> None:
    """A count that was stopped says "more than": it is never wrong, and never expensive."""
    await harness.add(*[new_job() for _ in range(5)], *[new_job(delay=MINUTE) for _ in range(5)])
    exact = await harness.store.read_overview(most=5)
    assert (exact.due, exact.later) == (Count(5), Count(5))
    cut = await harness.store.read_overview(most=4)
    assert (cut.due, cut.later) == (Count(4, more=True), Count(4, more=True))
    assert str(cut.due) == "more than 4"


async def test_jobs_with_a_limit_are_counted_and_listed(harness: StoreHarness) -> None:
    """They are in another index than the rest, but on the same screens, in the same order."""
    limited, plain, later = await harness.add(
        new_job(task="a", queue="mail", limits=("smtp",), run_at=START - 3 * MINUTE),
        new_job(task="a", queue="mail", run_at=START - 2 * MINUTE),
        new_job(task="a", queue="mail", limits=("smtp",), delay=MINUTE),
    )
    overview = await harness.store.read_overview()
    assert [(lane.queue, lane.task, lane.due, lane.later) for lane in overview.lanes] == [
        ("mail", "a", Count(2), Count(1))
    ]
    assert overview.oldest_due("mail") == START - 3 * MINUTE
    assert await listed(harness, ListedState.DUE) == [limited, plain]
    assert await listed(harness, ListedState.LATER) == [later]


async def test_the_overview_knows_every_state(harness: StoreHarness) -> None:
    """Claimed with expired locks, suspended, failing, paused, dead, recurring."""
    await harness.claimed()
    harness.now.advance(seconds=LOCK.total_seconds() + 1)
    await harness.claimed()
    await harness.suspended(waiting())
    claim = await harness.claimed()
    assert await harness.fail(claim, delay=MINUTE)
    await die(harness, task="d", queue="q")
    (paused,) = await harness.add(new_job(task="p"))
    assert await harness.store.pause_job(paused)
    await harness.add(recurring(task="r", delay=MINUTE))
    overview = await harness.store.read_overview()
    assert (overview.running, overview.expired) == (2, 1)
    assert (overview.suspended, overview.failing) == (1, 1)
    assert (overview.paused_jobs, overview.dead_jobs) == (Count(1), Count(1))
    assert [(dead.queue, dead.task, dead.lately, dead.at) for dead in overview.dead] == [
        ("q", "d", 1, harness.now.value)
    ]
    assert [(one.task, one.jobs, one.last_run) for one in overview.recurring] == [("r", 1, None)]
    harness.now.advance(hours=2)
    assert [dead.lately for dead in (await harness.store.read_overview()).dead] == [0]


async def test_the_overview_knows_who_serves_what(harness: StoreHarness) -> None:
    """Live workers by what they serve; dead and stopped ones are only counted."""
    for name in ("alice", "bob"):
        await harness.store.register_worker(worker_record(name, queues=["mail"], tasks=["a", "b"], app_version="2"))
    await harness.store.register_worker(worker_record("carl", queues=["web"], tasks=["a"]))
    await harness.store.register_worker(worker_record("dora"))
    await harness.store.stop_worker("dora")
    overview = await harness.store.read_overview()
    assert (overview.workers("alive"), overview.workers("stopped"), overview.places) == (3, 1, 12)
    assert (overview.serves("mail"), overview.serves("mail", "b"), overview.serves("web", "b")) == (2, 2, 0)
    assert (overview.knows("a"), overview.knows("greet")) == (3, 0)
    harness.now.advance(hours=1)
    overview = await harness.store.read_overview()
    assert (overview.workers("alive"), overview.workers("dead"), overview.fleet) == (0, 3, [])


async def test_the_overview_knows_the_leases(harness: StoreHarness) -> None:
    """Whether each is held, and how many wait for it."""
    answer = await harness.store.acquire_lease(asked("alice"))
    await harness.store.acquire_lease(asked("bob", waits=MINUTE))
    (lease,) = (await harness.store.read_overview()).leases
    assert (lease.holder, lease.term, lease.held, lease.waiting) == ("alice", 1, True, 1)
    assert lease.expires_at == answer.expires_at
    harness.now.advance(hours=1)
    (lease,) = (await harness.store.read_overview()).leases
    assert (lease.held, lease.waiting) == (False, 0)


async def test_the_overview_has_the_runs_of_the_last_hour(harness: StoreHarness) -> None:
    """By minute and by task, from the rollup: as far as runs have been counted."""
    for nth in range(FEW):
        claim = await harness.claimed()
        harness.now.advance(seconds=1)
        if nth == 0:
            assert await harness.fail(claim, delay=timedelta(days=1))
        else:
            assert await harness.complete(claim)
    await harness.store.roll_up_runs(leader=None)
    overview = await harness.store.read_overview()
    (task,) = overview.tasks
    assert (task.task, task.succeeded, task.failed, task.seconds) == ("greet", 2, 1, 3.0)
    assert sum(minute.succeeded for minute in overview.minutes) == 2
    assert sum(minute.failed for minute in overview.minutes) == 1
    harness.now.advance(hours=2)
    later = await harness.store.read_overview()
    assert (later.tasks, later.minutes) == ([], [])


async def test_many_lanes_are_counted_less_far(harness: StoreHarness) -> None:
    """Each lane's share shrinks, so that the whole does not cost more."""
    await harness.add(*[new_job(task=f"t{nth:03}") for nth in range(40) for _ in range(6)])
    overview = await harness.store.read_overview(most=99)
    assert overview.most == 5
    assert {lane.due for lane in overview.lanes} == {Count(4, more=True)}
    assert overview.due.more


async def test_reads_of_the_dashboard_change_nothing(harness: StoreHarness) -> None:
    """No row is written by looking."""
    await harness.add(new_job(), recurring(task="r"))
    claim = await harness.claim_one()
    assert await harness.record(claim, step())
    assert await harness.store.release_jobs("alice", [Release(hold=claim.hold, outcome=Outcome.RELEASED)])
    before = await harness.backend.snapshot()
    store = harness.store
    await store.read_overview()
    for state in ListedState:
        await store.page_jobs(state, after=Cursor(datetime.max.replace(year=8000, tzinfo=START.tzinfo), claim.job_id))
    await store.find_jobs("k")
    await store.list_schedules()
    await store.list_dead_errors()
    await store.sample_runs(since=MINUTE)
    await store.read_payload(claim.job_id)
    await store.list_actions()
    assert await harness.backend.snapshot() == before


async def test_the_overview_knows_what_is_paused(harness: StoreHarness) -> None:
    """Queues and tasks, by whom, when and why."""
    pause = Pause(kind=PauseKind.QUEUE, name="mail", reason="provider is down", paused_by="ada")
    assert await harness.store.add_pause(pause)
    overview = await harness.store.read_overview()
    (found,) = overview.pauses
    assert (found.kind, found.name, found.reason, found.by, found.at) == ("queue", "mail", pause.reason, "ada", START)
    assert overview.pause_of(queue="mail", task="any") == found
    assert overview.pause_of(queue="web", task="mail") is None


# Limits


async def test_a_job_knows_what_of_its_limits_is_in_use(harness: StoreHarness) -> None:
    """Running, cap, tokens and waiting of each key; an end counts at once, before any claim has folded its mark."""
    await declare(harness, running=2, rate="60/m", burst=5)
    waiting_job, *_ = (await jobs(harness, 3))[::-1]
    first, _ = await claims(harness)
    (limit,) = await harness.store.read_job_limits(waiting_job)
    assert (limit.key, limit.running, limit.rate_count, limit.burst) == ("smtp", 2, 60, 5)
    assert (limit.in_use, limit.waiting, round(limit.tokens or 0)) == (2, 1, 3)
    assert limit.full == "smtp is full: 2 of 2 running, 1 job waits for it"
    assert await harness.complete(first)
    (limit,) = await harness.store.read_job_limits(waiting_job)
    assert (limit.in_use, limit.full) == (1, "")
    assert await harness.store.read_job_limits(uuid4()) == []


async def test_jobs_with_a_limit_are_listed_with_the_others(harness: StoreHarness) -> None:
    """By due time over both kinds, page by page, and by queue and task; the overview counts them, and their oldest."""
    made = [
        new_job(task=task, queue=queue, run_at=START - nth * MINUTE, limits=limits)
        for nth, (task, queue, limits) in enumerate(
            [("a", "x", ()), ("a", "x", ("k:1",)), ("b", "x", ("k:2",)), ("b", "y", ()), ("a", "y", ("k:3", "all"))]
        )
    ]
    soon = new_job(task="a", queue="x", run_at=START + MINUTE, limits=("k:1",))
    await harness.store.enqueue_jobs([*made, soon])
    assert await listed(harness, ListedState.DUE) == [job.id for job in made[::-1]]
    assert await listed(harness, ListedState.DUE, task="a") == [made[4].id, made[1].id, made[0].id]
    assert await listed(harness, ListedState.DUE, queue="y") == [made[4].id, made[3].id]
    assert await listed(harness, ListedState.LATER) == [soon.id]
    overview = await harness.store.read_overview()
    assert (overview.due, overview.later) == (Count(5), Count(1))
    assert overview.oldest_due("y") == START - 4 * MINUTE
