"""Enqueueing and declaring: inserted once, however often it is sent."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from reltask.model.duration import LONGEST
from reltask.model.job import EARLIEST, LATEST, Declared, NewJob, State
from reltask.stores.store import Store
from tests.store.store_harness import START, Snapshot, StoreHarness, new_job, recurring, request, seen

ODD_NAME = 'naïve ☃ 𝄞 "quoted" \'single\' back\\slash :now $1 ? {"x": [1]} %s end'
ODD = f"{ODD_NAME}\n\ttab \u2028"


async def test_due_at_once_after_a_delay_or_at_a_time(harness: StoreHarness) -> None:
    """By the database's time, to the microsecond; each time zone gives the same instant."""
    at = datetime(2025, 7, 1, 12, 0, 0, 654321, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    now, later, then = await harness.add(new_job(), new_job(delay=timedelta(minutes=1)), new_job(run_at=at))
    assert (await harness.job(now)).due_at == START
    assert (await harness.job(later)).due_at == START + timedelta(minutes=1)
    assert (await harness.job(then)).next_run_time == at.astimezone(UTC)


async def test_extreme_times_are_stored(harness: StoreHarness) -> None:
    """The first and the last allowed time, and the longest delay: none prevents a claim."""
    last = LATEST - timedelta(microseconds=1)
    first, later, latest = await harness.add(new_job(run_at=EARLIEST), new_job(delay=LONGEST), new_job(run_at=last))
    assert [(job.id, job.due_at) for job in await harness.store.list_jobs()] == [
        (first, EARLIEST),
        (later, START + LONGEST),
        (latest, last),
    ]
    harness.now.value = last
    assert {claim.job_id: claim.due_at for claim in (await harness.claim(limit=3)).claims} == {
        first: EARLIEST,
        later: START + LONGEST,
        latest: last,
    }


async def test_enqueued_job_starts_at_slot_1(harness: StoreHarness) -> None:
    """Slot 1, no fence, no attempt, not locked."""
    (job_id,) = await harness.add(new_job(queue="mail", priority=2, max_attempts=4, key="k"))
    view = await harness.job(job_id)
    assert (view.state, view.slot_no, view.fence, view.attempt, view.max_attempts) == (State.READY, 1, 0, 0, 4)
    assert (view.queue, view.priority, view.key, view.created_at) == ("mail", 2, "k", START)
    assert (view.locked_by, view.last_run_time, view.isolated) == (None, None, False)


async def test_enqueue_twice_inserts_once(harness: StoreHarness) -> None:
    """The same batch sent again after a lost answer changes nothing."""
    job, other = new_job(), new_job()
    assert await harness.store.enqueue_jobs([job]) == {job.id}
    before = await harness.snapshot()
    assert await harness.store.enqueue_jobs([job]) == set()
    assert await harness.snapshot() == before
    assert await harness.store.enqueue_jobs([job, other]) == {other.id}


async def test_finished_job_is_not_enqueued_again(harness: StoreHarness) -> None:
    """The ledger keeps the id of a one-off that has run and is gone."""
    job = new_job()
    await harness.complete(await harness.claimed(job))
    assert await harness.store.enqueue_jobs([job]) == set()
    assert await harness.store.list_jobs() == []
    other = new_job()
    assert await harness.store.enqueue_jobs([job, other]) == {other.id}


async def test_key_is_unique_per_task_while_the_row_exists(harness: StoreHarness) -> None:
    """Of two jobs of one task with one key the second is not inserted; of another task, or afterwards, it is."""
    first = new_job(key="k")
    await harness.add(first)
    assert await harness.store.enqueue_jobs([new_job(key="k")]) == set()
    await harness.add(new_job(key="k", task="other"), new_job(key="l"), new_job(), new_job())
    await harness.store.discard_job(first.id)
    await harness.add(new_job(key="k"))


async def test_recurring_without_a_key_is_unique_too(harness: StoreHarness) -> None:
    """One schedule per task and key; one-offs without a key are unlimited."""
    await harness.add(recurring())
    assert await harness.store.enqueue_jobs([recurring()]) == set()
    await harness.add(recurring(key="a"), new_job(), new_job())


async def test_duplicates_within_a_batch(harness: StoreHarness) -> None:
    """Of two with one key in one batch, one is inserted."""
    inserted = await harness.store.enqueue_jobs([new_job(key="k"), new_job(key="k"), new_job()])
    assert len(inserted) == 2


# In bulk


def many() -> list[NewJob]:
    """More than a store inserts one by one, with every field that a job without a key can have."""
    at = datetime(2025, 7, 1, 12, 0, 0, 654321, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    kinds: list[dict[str, Any]] = [
        {},
        {"run_at": at},
        {"delay": timedelta(minutes=1)},
        {"task": ODD_NAME, "queue": ODD_NAME, "args": json.dumps({"name": ODD})},
        {"priority": 0, "max_attempts": 7, "lock_timeout": timedelta(milliseconds=1234)},
        {"max_attempts": None},
    ]
    return [new_job(**kinds[n % len(kinds)]) for n in range(300)]


async def test_bulk_stores_what_single_jobs_do(harness: StoreHarness) -> None:
    """A row of a bulk is the same as one enqueued alone."""
    jobs = many()
    assert await harness.store.enqueue_jobs(jobs) == {job.id for job in jobs}
    together = await harness.snapshot()
    for job in jobs:
        await harness.store.discard_job(job.id)
    alone = [replace(job, id=uuid4()) for job in jobs]
    for job in alone:
        assert await harness.store.enqueue_jobs([job]) == {job.id}
    assert _values(together, jobs) == _values(await harness.snapshot(), alone)


def _values(snapshot: Snapshot, jobs: list[NewJob]) -> list[Any]:
    """The rows of these jobs, in order, without the ids and without the last column, SQL Server's row number."""
    rows = {UUID(str(row[0])): row[1:-1] for row in snapshot["jobs"]}
    return [rows[job.id] for job in jobs]


async def test_bulk_twice_inserts_once(harness: StoreHarness) -> None:
    """A bulk sent again changes nothing, and does not bring back done jobs; new ones are inserted."""
    jobs, more = many(), many()
    await harness.store.enqueue_jobs(jobs)
    before = await harness.snapshot()
    assert await harness.store.enqueue_jobs(jobs) == set()
    assert await harness.snapshot() == before
    for claim in (await harness.store.claim_jobs(request(limit=40))).claims:
        await harness.complete(claim)
    left = {job.id for job in await harness.store.list_jobs(limit=1000)}
    assert len(left) == 260
    assert await harness.store.enqueue_jobs([*jobs, *more]) == {job.id for job in more}
    assert {job.id for job in await harness.store.list_jobs(limit=1000)} == left | {job.id for job in more}


async def test_bulk_of_done_jobs_inserts_nothing(harness: StoreHarness) -> None:
    """Only the ledger knows them: no row in the jobs table prevents the insert."""
    jobs = [new_job() for _ in range(150)]
    await harness.store.enqueue_jobs(jobs)
    for claim in (await harness.store.claim_jobs(request(limit=150))).claims:
        await harness.complete(claim)
    assert await harness.store.enqueue_jobs(jobs) == set()
    assert await harness.store.list_jobs() == []


async def test_jobs_of_an_earlier_request_count_as_own(harness: StoreHarness) -> None:
    """Sent again after a lost answer: waiting or done, they are the caller's own; another job's key is not."""
    done, waiting, new = new_job(), new_job(key="k"), new_job()
    await harness.complete(await harness.claimed(done))
    await harness.add(waiting)
    jobs = [done, waiting, new, new_job(key="k")]
    assert await harness.store.enqueue_jobs(jobs, again=True) == {done.id, waiting.id, new.id}
    assert {job.id for job in await harness.store.list_jobs()} == {waiting.id, new.id}
    bulk = [done, *many()]
    assert await harness.store.enqueue_jobs(bulk, again=True) == {job.id for job in bulk}
    assert len(await harness.store.list_jobs(limit=1000)) == 302


async def test_bulk_with_keys(harness: StoreHarness) -> None:
    """A key that is taken is left out of a bulk too."""
    await harness.add(new_job(key="0"))
    jobs = [new_job(key=str(n % 149)) for n in range(150)]
    assert await harness.store.enqueue_jobs(jobs) < {job.id for job in jobs}
    assert len(await harness.store.list_jobs(limit=1000)) == 149


# Odd values


@pytest.mark.parametrize("field", ["task", "key", "queue"])
async def test_odd_names_are_kept(harness: StoreHarness, field: str) -> None:
    """Names are values, never part of a statement."""
    job = new_job(**{field: ODD_NAME})
    await harness.add(job)
    claim = await harness.claim_one(tasks=[job.task], queues=[job.queue])
    assert getattr(claim, field) == ODD_NAME


async def test_odd_texts_are_kept(harness: StoreHarness) -> None:
    """Arguments, results, errors and worker names are returned unchanged."""
    args = json.dumps({"text": ODD, "ünïcode": [1, 2.5, None, True], "big": 2**60}, ensure_ascii=False)
    await harness.add(new_job(args=args, max_attempts=2))
    claim = await harness.claim_one(ODD_NAME)
    assert claim.args == args
    await harness.fail(claim, ODD_NAME, error=ODD)
    again = await harness.claim_one(ODD_NAME)
    await harness.complete(again, ODD_NAME, result=json.dumps(ODD))
    failed, succeeded = await harness.runs(claim.job_id)
    assert (failed.error, failed.worker) == (ODD, ODD_NAME)
    assert json.loads(succeeded.result or "") == ODD


async def test_unstorable_error_is_still_recorded(harness: StoreHarness) -> None:
    """A traceback may contain NUL characters or lone surrogates: the run is still recorded in the ledger."""
    claim = await harness.claimed()
    assert await harness.fail(claim, error="before \0 \udcff after")
    (run,) = await harness.runs(claim.job_id)
    assert (run.error or "").startswith("before ")
    assert (run.error or "").endswith(" after")


async def test_two_stores_see_each_other(harness: StoreHarness, rival: Store) -> None:
    """A statement sees what another process has committed."""
    (job_id,) = await harness.add(new_job())
    view = await rival.read_job(job_id)
    assert view is not None
    await rival.pause_job(job_id)
    assert (await harness.job(job_id)).state is State.PAUSED


async def test_read_keys_finds_who_has_a_name(harness: StoreHarness) -> None:
    """By (task, key), one-offs and schedules, also inside a transaction; jobs without a key are not found."""
    unique, keyed = new_job(task="one_off", key="k"), recurring(key="k")
    await harness.add(unique, keyed, recurring(), new_job(task="one_off"))
    names = [("one_off", "k"), ("greet", "k"), ("one_off", ""), ("one_off", "other")]
    owners = {("one_off", "k"): unique.id, ("greet", "k"): keyed.id}
    assert await harness.store.read_keys(names) == owners
    async with harness.store.transaction(timeout=timedelta(seconds=10)) as transaction:
        assert await transaction.read_keys(names) == owners
    assert await harness.store.read_keys([]) == {}


# Declaring


async def test_read_declared_finds_jobs_by_name(harness: StoreHarness) -> None:
    """By (task, key), where no key is also a key; a one-off without a key is not found."""
    plain, keyed, unique = recurring(app_version="1.2"), recurring(key="k"), new_job(task="one_off", key="k")
    await harness.add(plain, keyed, unique, new_job(task="one_off"))
    names = [("greet", None), ("greet", "k"), ("one_off", "k"), ("one_off", None), ("none", None)]
    found = await harness.store.read_declared(names)
    assert {(row.id, row.key) for row in found} == {(plain.id, None), (keyed.id, "k"), (unique.id, "k")}
    (first,) = [declared for declared in found if declared.id == plain.id]
    assert (first.task, first.schedule, first.declaration, first.app_version) == ("greet", plain.schedule, "v1", "1.2")
    assert (first.next_run_time, first.now) == (START, harness.now())
    assert await harness.store.read_declared([]) == []


async def test_declare_rewrites_the_definition(harness: StoreHarness) -> None:
    """Every column of the definition; id, slot number and history stay."""
    job = recurring()
    await harness.complete(await harness.claimed(job), next_run_time=START + timedelta(minutes=10))
    newer = recurring(
        queue="mail", priority=1, args='{"a": 1}', schedule='{"every":"5m"}', declaration="v2", app_version="2",
        max_attempts=9, lock_timeout=timedelta(seconds=7), run_at=START + timedelta(minutes=5),
    )  # fmt: skip
    assert await harness.store.declare_job(newer, seen=seen(at=START + timedelta(minutes=10)))
    (declared,) = await harness.store.read_declared([("greet", None)])
    assert (declared.id, declared.declaration, declared.app_version) == (job.id, "v2", "2")
    harness.now.value = START + timedelta(minutes=5)
    claim = await harness.claim_one(queues=["mail"])
    assert (claim.job_id, claim.slot_no, claim.priority, claim.args, claim.max_attempts) == (
        job.id,
        2,
        1,
        '{"a": 1}',
        9,
    )
    assert (claim.schedule, claim.lock_timeout) == ('{"every":"5m"}', timedelta(seconds=7))


@pytest.mark.parametrize("old", [seen(None), seen("v0"), seen(at=START - timedelta(microseconds=1))])
async def test_declare_only_what_was_seen(harness: StoreHarness, old: Declared) -> None:
    """Of two workers that read the same declaration one rewrites it; the other's read is stale, and changes nothing.

    The same holds for a slot that has ended meanwhile: it must not be restored.
    """
    await harness.add(recurring())
    before = await harness.snapshot()
    assert not await harness.store.declare_job(recurring(declaration="v2"), seen=old)
    assert not await harness.store.declare_job(recurring(declaration="v2", key="other"), seen=seen())
    assert await harness.snapshot() == before


async def test_declare_a_row_without_declaration(harness: StoreHarness) -> None:
    """A row made by hand has no declaration, and "none" can be compared."""
    await harness.add(recurring(declaration=None))
    assert await harness.store.declare_job(recurring(declaration="v1"), seen=seen(None))


async def test_declare_waits_for_a_claimed_slot(harness: StoreHarness) -> None:
    """A running slot is neither moved nor rewritten: its worker ends it by the schedule it has claimed."""
    claim = await harness.claimed(recurring())
    before = await harness.snapshot()
    newer = recurring(declaration="v2", schedule='{"every":"1h"}', run_at=START + timedelta(hours=1))
    assert not await harness.store.declare_job(newer, seen=seen())
    assert await harness.snapshot() == before
    await harness.complete(claim, next_run_time=START + timedelta(days=30))
    assert not await harness.store.declare_job(newer, seen=seen())
    assert await harness.store.declare_job(newer, seen=seen(at=START + timedelta(days=30)))
    assert (await harness.job(claim.job_id)).next_run_time == START + timedelta(hours=1)


async def test_declare_a_slot_that_the_worker_holds(harness: StoreHarness) -> None:
    """The holder of the slot may rewrite the definition: slot and claim are unchanged."""
    claim = await harness.claimed(recurring(run_at=START))
    newer = recurring(declaration="v2", schedule='{"every":"1h"}', run_at=START + timedelta(hours=1), queue="mail")
    before = await harness.snapshot()
    for worker, fence in [("bob", claim.fence), ("alice", claim.fence + 1), ("alice", None), (None, claim.fence)]:
        assert not await harness.store.declare_job(newer, seen=seen(), worker=worker, fence=fence)
    assert await harness.snapshot() == before
    assert await harness.store.declare_job(newer, seen=seen(), worker="alice", fence=claim.fence)
    job = await harness.job(claim.job_id)
    assert (job.schedule, job.queue, job.next_run_time, job.due_at) == ('{"every":"1h"}', "mail", START, START)
    assert (job.locked_by, job.fence) == ("alice", claim.fence)
    assert await harness.complete(claim, next_run_time=START + timedelta(hours=2))


async def test_declare_clears_an_old_backoff(harness: StoreHarness) -> None:
    """An unclaimed slot moves to its new time, and an earlier failure's backoff is cleared."""
    await harness.fail(await harness.claimed(recurring()), delay=timedelta(days=1))
    at = START + timedelta(hours=1)
    assert await harness.store.declare_job(recurring(declaration="v2", run_at=at), seen=seen())
    (view,) = await harness.store.list_jobs()
    assert (view.due_at, view.next_run_time) == (at, at)


async def test_declare_keeps_what_moved_a_slot_that_stays(harness: StoreHarness) -> None:
    """A slot whose nominal time does not change keeps its backoff, or an operator's due time."""
    await harness.fail(await harness.claimed(recurring(run_at=START)), delay=timedelta(days=1))
    assert await harness.store.declare_job(recurring(declaration="v2", run_at=START), seen=seen())
    (view,) = await harness.store.list_jobs()
    assert (view.due_at, view.next_run_time) == (START + timedelta(days=1), START)


async def test_declare_leaves_one_offs_alone(harness: StoreHarness) -> None:
    """A unique one-off with the same name is no declaration."""
    await harness.add(new_job(key="k"))
    assert not await harness.store.declare_job(recurring(id=uuid4(), key="k"), seen=seen(None))
