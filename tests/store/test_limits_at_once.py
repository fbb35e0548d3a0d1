"""Many workers claim, end and lose jobs with limits at the same time: never more than a limit, by the ledger."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest

from reltask.model.job import Claim, Completion, Failure, Hold, NewJob, Outcome, Release
from reltask.model.limit import LimitRule
from reltask.stores.store import Store
from tests.store.store_harness import Backend, request

KEYS, JOBS, WORKERS, RUNNING = 25, 600, 6, 3
"""Jobs wait at their keys, and half of them at one that all share."""


@pytest.mark.slow
async def test_no_limit_is_exceeded_while_many_workers_claim(backend: Backend) -> None:
    """Six workers, 600 jobs over 25 keys of three and a shared one of ten: all are done at last."""
    await backend.clear()
    stores = [backend.store(None) for _ in range(WORKERS)]
    for store in stores:
        await store.open()
    try:
        wanted = await _prepare(stores[0])
        left = set(wanted)
        async with asyncio.timeout(240):
            await asyncio.gather(*(_work(store, f"w{nth}", left) for nth, store in enumerate(stores)))
        assert not left
        assert list(await stores[0].audit_limits()) == []
        runs = await stores[0].list_runs(limit=100_000)
        spans: dict[str, list[tuple[datetime, int]]] = defaultdict(list)
        for run in runs:
            assert run.claimed_at is not None
            for key in wanted[run.job_id]:
                spans[key] += [(run.claimed_at, 1), (run.finished_at, -1)]
        for key, changes in spans.items():
            at_once = most = 0
            for _, change in sorted(changes, key=lambda change: (change[0], change[1])):
                at_once += change
                most = max(most, at_once)
            assert most <= (10 if key == "shared" else RUNNING), key
    finally:
        for store in stores:
            await store.close()


async def _prepare(store: Store) -> dict[UUID, tuple[str, ...]]:
    assert await store.write_limit(LimitRule(name="each", running=RUNNING, declaration="a"), seen=None)
    assert await store.write_limit(LimitRule(name="shared", running=10, declaration="a"), seen=None)
    rng = random.Random(7)
    jobs = []
    for nth in range(JOBS):
        keys = (f"each:{rng.randrange(KEYS)}", "shared") if nth % 2 else (f"each:{rng.randrange(KEYS)}",)
        jobs.append(NewJob(id=uuid4(), task="greet", limits=keys))
    assert len(await store.enqueue_jobs(jobs)) == JOBS
    return {job.id: job.limits for job in jobs}


async def _work(store: Store, worker: str, left: set[UUID]) -> None:
    rng = random.Random(worker)
    while left:
        answer = await store.claim_limited(request(worker, limit=rng.randint(1, 8)))
        if not answer.claims:
            await asyncio.sleep(0.005)
        rng.shuffle(answer.claims)
        for claim in answer.claims:
            await _end(store, worker, claim, rng, left)


async def _end(store: Store, worker: str, claim: Claim, rng: random.Random, left: set[UUID]) -> None:
    await asyncio.sleep(rng.random() * 0.004)
    how, hold = rng.random(), Hold(claim.job_id, claim.fence)
    if how < 0.1:
        assert await store.fail_jobs(
            worker, [Failure(hold=hold, error="no", delay=timedelta(milliseconds=3))], wait=True
        )
    elif how < 0.2:
        assert await store.release_jobs(worker, [Release(hold=hold, outcome=Outcome.RELEASED)], wait=True)
    else:
        assert await store.complete_jobs(worker, [Completion(hold)], wait=True)
        left.discard(claim.job_id)
