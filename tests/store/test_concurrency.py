"""Many workers at once, each with its own connections: nothing twice, nothing lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

import pytest

from reltask.errors import TransientError
from reltask.model.job import Claim, Completion, Hold, Outcome
from reltask.stores.store import BATCH, Store
from tests.store.store_harness import LOCK, Backend, StoreHarness, new_job, recurring, request

T = TypeVar("T")
WORKERS = 20


@asynccontextmanager
async def many_stores(harness: StoreHarness, count: int = WORKERS) -> AsyncIterator[list[Store]]:
    stores = [harness.backend.store(harness.now) for _ in range(count)]
    await asyncio.gather(*(store.open() for store in stores))
    try:
        yield stores
    finally:
        await asyncio.gather(*(store.close() for store in stores))


@pytest.mark.slow
async def test_claimers_get_disjoint_jobs(harness: StoreHarness) -> None:
    """Twenty workers claim at once until nothing is left: every job goes to exactly one of them."""
    jobs = [new_job(task="ab"[n % 2]) for n in range(200)]
    await harness.add(*jobs)

    async def drain(store: Store, worker: str) -> list[Claim]:
        got: list[Claim] = []
        while answer := (await store.claim_jobs(request(worker, tasks=["a", "b"], limit=3))).claims:
            got += answer
        return got

    async with many_stores(harness) as stores:
        claims = await asyncio.gather(*(drain(store, f"w{n}") for n, store in enumerate(stores)))
    taken = Counter(claim.job_id for got in claims for claim in got)
    left = {claim.job_id for claim in (await harness.claim("last", tasks=["a", "b"], limit=1000)).claims}
    assert set(taken) | left == {job.id for job in jobs}
    assert set(taken.values()) == {1}
    assert not set(taken) & left


@pytest.mark.slow
async def test_fifty_workers_share_ten_thousand_jobs(harness: StoreHarness) -> None:
    """They claim and complete until nothing is left: each job ends once; a deadlock victim retries."""
    jobs = [new_job() for _ in range(10_000)]
    for start in range(0, len(jobs), BATCH):
        await harness.add(*jobs[start : start + BATCH])
    ended: Counter[UUID] = Counter()

    async def work(store: Store, worker: str) -> None:
        while claims := (await again(lambda: store.claim_jobs(request(worker, limit=100)))).claims:
            left = [Completion(hold=claim.hold) for claim in claims]
            while left:  # a row that another worker's claim looks at just now is skipped, and missing from the answer
                settled = await again(lambda: store.complete_jobs(worker, left))  # noqa: B023 - called at once
                ended.update(one.hold.job_id for one in settled)
                done = {one.hold for one in settled}
                left = [completion for completion in left if completion.hold not in done]

    async with many_stores(harness, 50) as stores:
        await asyncio.gather(*(work(store, f"w{n}") for n, store in enumerate(stores)))
        await work(stores[0], "last")  # rows that another worker held during the last claims
    assert ended == Counter(job.id for job in jobs)
    assert await harness.store.list_jobs() == []
    runs = await harness.store.list_runs(limit=len(jobs) + 1)
    assert Counter((run.job_id, run.outcome) for run in runs) == Counter((job.id, "succeeded") for job in jobs)


async def again(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call that was refused for the moment, as the worker does."""
    while True:
        with suppress(TransientError):
            return await ask()


@pytest.mark.slow
async def test_one_slot_is_completed_once_however_many_try(harness: StoreHarness) -> None:
    """The same completion from ten connections at once: one is accepted, with one ledger row and one next slot."""
    claim = await harness.claimed(recurring())
    completion = Completion(hold=claim.hold, next_run_time=claim.nominal + timedelta(minutes=10))
    async with many_stores(harness, 10) as stores:
        answers = await asyncio.gather(*(store.complete_jobs("alice", [completion]) for store in stores))
    assert sum(map(len, answers)) == 1
    assert [run.outcome for run in await harness.runs(claim.job_id)] == [Outcome.SUCCEEDED]
    assert (await harness.job(claim.job_id)).slot_no == 2


@pytest.mark.slow
async def test_reclaim_against_completion(harness: StoreHarness) -> None:
    """When a lock expires its owner completes and others reclaim: each run ends in one way only."""
    await harness.add(*[recurring(key=str(n)) for n in range(30)])
    claims = (await harness.claim(limit=30)).claims
    harness.now.value += LOCK + timedelta(seconds=1)
    async with many_stores(harness, 6) as (one, two, *owners):
        parts = [claims[n :: len(owners)] for n in range(len(owners))]
        following = harness.now() + timedelta(minutes=10)
        completing = [
            store.complete_jobs("alice", [Completion(hold=claim.hold, next_run_time=following) for claim in part])
            for store, part in zip(owners, parts, strict=True)
        ]
        (lost_one, lost_two), completed = await asyncio.gather(
            asyncio.gather(one.reclaim_jobs(), two.reclaim_jobs()), asyncio.gather(*completing)
        )
    ended = [Hold(lost.job_id, lost.fence) for lost in [*lost_one, *lost_two]]
    ended += [settled.hold for part in completed for settled in part]
    await harness.store.reclaim_jobs()
    assert max(Counter(ended).values()) == 1
    assert len(await harness.store.list_runs(limit=1000)) == 30


@pytest.mark.slow
async def test_enqueue_the_same_key_at_once(harness: StoreHarness) -> None:
    """Twenty processes declare the same recurring job at their start: one row."""
    async with many_stores(harness) as stores:
        answers = await asyncio.gather(*(store.enqueue_jobs([recurring(key="k")]) for store in stores))
    assert sum(map(len, answers)) == 1
    assert len(await harness.store.list_jobs()) == 1


@pytest.mark.slow
async def test_ledger_adds_up_after_a_storm(harness: StoreHarness) -> None:
    """Claims, failures, releases, completions and late writes of many workers: no gaps in fences, slots ended once."""
    jobs = await harness.add(*[recurring(key=str(n)) for n in range(5)])

    async def work(store: Store, worker: str) -> None:
        for turn in range(12):
            for claim in (await store.claim_jobs(request(worker, limit=2))).claims:
                hands = StoreHarness(store, harness.now, harness.backend)
                # A rival's claim may hold the row for a moment: wait, as the worker does.
                if turn % 3 == 0:
                    assert await hands.fail(claim, worker, wait=True)
                elif turn % 3 == 1:
                    assert await hands.release(claim, worker, wait=True)
                else:
                    assert await hands.complete(claim, worker, wait=True, next_run_time=claim.nominal)
                assert not await hands.complete(claim, worker, next_run_time=claim.nominal + LOCK)

    async with many_stores(harness, 8) as stores:
        await asyncio.gather(*(work(store, f"w{n}") for n, store in enumerate(stores)))
    for job_id in jobs:
        runs, view = await harness.runs(job_id), await harness.job(job_id)
        assert [run.fence for run in runs] == list(range(1, view.fence + 1))
        assert [run.slot_no for run in runs if run.outcome.ends_slot] == list(range(1, view.slot_no))


@pytest.mark.slow
async def test_fresh_store_opens_while_others_run(backend: Backend, harness: StoreHarness) -> None:
    """Opening a store disturbs no other, and is not disturbed."""

    async def open_and_claim(number: int) -> int:
        store = backend.store(harness.now)
        try:
            await store.open()
            return len((await store.claim_jobs(request(f"w{number}"))).claims)
        except TransientError as error:  # pragma: no cover - the message is the point
            pytest.fail(str(error))
        finally:
            await store.close()

    await harness.add(*[new_job() for _ in range(20)])
    assert sum(await asyncio.gather(*(open_and_claim(number) for number in range(20)))) == 20
