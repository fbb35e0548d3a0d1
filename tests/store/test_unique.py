"""Unique tasks: one job per key, by constraint, however many enqueue at once."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any
from uuid import UUID

from reltask.model.job import NewJob, State, Unique
from reltask.stores.store import Store
from tests.store.store_harness import START, StoreHarness, new_job

HOUR = timedelta(hours=1)
LIMIT = timedelta(seconds=30)


class RolledBack(Exception):
    """Ends a block without its commit."""


def unique(key: str = "k", *, keep: timedelta | None = None, until_start: bool = False, **fields: Any) -> NewJob:
    return new_job(unique=Unique(key=key, keep=keep, until_start=until_start), **fields)


async def added(harness: StoreHarness, *jobs: NewJob) -> list[bool]:
    """Which of these, enqueued together, were inserted."""
    inserted = await harness.store.enqueue_unique(jobs)
    return [job.id in inserted for job in jobs]


async def owner(harness: StoreHarness, key: str = "k") -> UUID | None:
    return (await harness.store.read_unique([("greet", key)])).get(("greet", key))


async def test_a_key_is_taken_once(harness: StoreHarness) -> None:
    """Also within one batch, where the first wins. Another task, or another key, is another one."""
    first, second = sorted([unique(), unique()], key=lambda job: job.id)
    assert await added(harness, first, second, unique("other"), unique(task="other")) == [True, False, True, True]
    assert await added(harness, unique()) == [False]
    assert await owner(harness) == first.id
    assert len(await harness.store.list_jobs()) == 3


async def test_a_key_is_free_after_the_end(harness: StoreHarness) -> None:
    """However the job ended: no end has to touch the key. A dead letter has ended, too."""
    assert await added(harness, unique()) == [True]
    assert await harness.complete(await harness.claim_one())
    assert await added(harness, unique()) == [True]
    assert await harness.fail(await harness.claim_one(), final=True)
    assert await added(harness, unique()) == [True]
    (job_id,) = [view.id for view in await harness.store.list_jobs(state=State.READY)]
    await harness.store.cancel_job(job_id)
    assert await added(harness, unique()) == [True]


async def test_a_key_is_taken_while_its_job_runs_and_waits(harness: StoreHarness) -> None:
    """Claimed, failed and waiting for its retry, paused: it is the same job."""
    assert await added(harness, unique()) == [True]
    claim = await harness.claim_one()
    assert await added(harness, unique()) == [False]
    await harness.fail(claim, delay=HOUR)
    await harness.store.pause_job(claim.job_id)
    assert await added(harness, unique()) == [False]


async def test_a_key_that_is_free_from_the_start_on(harness: StoreHarness) -> None:
    """A change during the run is not lost: it gets a job of its own, and only one."""
    assert await added(harness, unique(until_start=True)) == [True]
    assert await added(harness, unique(until_start=True)) == [False]
    claim = await harness.claim_one()
    assert await added(harness, unique(until_start=True)) == [True]
    assert await added(harness, unique(until_start=True)) == [False]
    assert await harness.complete(claim)


async def test_a_key_that_is_kept(harness: StoreHarness) -> None:
    """For its time, from the enqueue on, also after the end of the job; and as long as the job lives."""
    assert await added(harness, unique(keep=HOUR)) == [True]
    assert await harness.complete(await harness.claim_one())
    harness.now.advance(minutes=59)
    assert await added(harness, unique(keep=HOUR)) == [False]
    harness.now.advance(minutes=1)
    assert await added(harness, unique(keep=HOUR)) == [True]
    harness.now.advance(hours=3)
    assert await added(harness, unique(keep=HOUR)) == [False]


async def test_an_enqueue_sent_twice_is_not_refused_by_itself(harness: StoreHarness) -> None:
    """The same id again inserts nothing, and counts as inserted after a lost answer; also when the job has ended."""
    job = unique()
    assert await added(harness, job) == [True]
    assert await harness.store.enqueue_unique([job], again=True) == {job.id}
    assert len(await harness.store.list_jobs()) == 1
    await harness.complete(await harness.claim_one())
    assert await harness.store.enqueue_unique([job], again=True) == {job.id}
    assert await added(harness, unique()) == [True]  # the resend has left no key behind
    assert len(await harness.store.list_jobs()) == 1


async def test_fifty_at_once_make_one_job(harness: StoreHarness, rival: Store) -> None:
    """Over two stores, each with several connections."""
    jobs = [unique() for _ in range(50)]
    stores = [harness.store, rival]
    answers = await asyncio.gather(*(stores[nth % 2].enqueue_unique([job]) for nth, job in enumerate(jobs)))
    (winner,) = {job_id for answer in answers for job_id in answer}
    assert [view.id for view in await harness.store.list_jobs()] == [winner]
    assert await owner(harness) == winner


async def test_a_transaction_has_the_key_until_its_end(harness: StoreHarness, rival: Store) -> None:
    """Another enqueue waits for it, and is refused by its commit; after a rollback it has the key."""
    for commits in (False, True):
        job, other = unique(f"{commits}"), unique(f"{commits}")
        waiting: list[asyncio.Task[set[UUID]]] = []
        with contextlib.suppress(RolledBack):
            async with harness.store.transaction(timeout=LIMIT) as transaction:
                assert await transaction.enqueue_unique([job]) == {job.id}
                assert await transaction.enqueue_unique([unique(f"{commits}")]) == set()
                assert await transaction.read_unique([("greet", f"{commits}")]) == {("greet", f"{commits}"): job.id}
                waiting.append(asyncio.create_task(rival.enqueue_unique([other])))
                await asyncio.sleep(0.05)  # long enough for it to wait; if it does not, the order is another one
                if not commits:
                    raise RolledBack
        assert await waiting[0] == (set() if commits else {other.id})


async def test_a_waiting_job_is_replaced(harness: StoreHarness) -> None:
    """It gets the arguments and the time of the later call; a run that has begun does not."""
    first = unique(args='{"text":"old"}', delay=HOUR)
    assert await added(harness, first) == [True]
    later = unique(args='{"text":"new"}', run_at=START + timedelta(hours=2))
    assert await harness.store.replace_job(later) == first.id
    assert (await harness.job(first.id)).due_at == START + timedelta(hours=2)
    harness.now.advance(hours=2)
    claim = await harness.claim_one()
    assert claim.args == '{"text":"new"}'
    assert await harness.store.replace_job(unique()) is None
    await harness.fail(claim, delay=HOUR)
    assert await harness.store.replace_job(unique()) is None
    assert await harness.store.replace_job(unique("unknown")) is None


async def test_keys_of_ended_jobs_are_pruned(harness: StoreHarness) -> None:
    """A batch at a time, from where the last one ended; those that live or are kept stay."""
    await added(harness, *(unique(f"{nth}") for nth in range(4)), unique("kept", keep=HOUR))
    for claim in (await harness.claim(limit=5)).claims[:5]:
        await harness.complete(claim)
    await added(harness, unique("living"))
    removed, last = await harness.store.prune_keys(after=("", ""), limit=3)
    assert (removed, last) == (3, ("greet", "2"))
    assert await harness.store.prune_keys(after=last or ("", ""), limit=3) == (1, ("greet", "living"))
    assert await harness.store.prune_keys(after=("greet", "living"), limit=3) == (0, None)
    assert [await owner(harness, key) is None for key in ("0", "3", "kept", "living")] == [True, True, False, False]
