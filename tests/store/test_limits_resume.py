"""Functions that resume, and jobs that change: what a look at a limit must not get wrong."""

from __future__ import annotations

import asyncio

import pytest

from reltask.model.job import Claim
from reltask.stores.store import Store
from tests.store.store_harness import Backend, Now, PostgresBackend, StoreHarness, new_job, request, waiting
from tests.store.test_limits import claims, declare, jobs, look


async def _suspended(harness: StoreHarness, limits: tuple[str, ...], **fields: object) -> Claim:
    """A function that has begun and waits for a signal."""
    await harness.add(new_job(limits=limits, **fields))
    (claim,) = await claims(harness)
    await harness.record(claim, waiting())
    assert await harness.suspend(claim)
    return claim


async def _wake(harness: StoreHarness, claim: Claim) -> None:
    await harness.send(claim.job_id)
    await harness.store.fold_marks()


async def test_a_function_resumes_although_others_wait_for_tokens_of_its_second_limit(harness: StoreHarness) -> None:
    """It needs no token there, so it does not wait behind those that do."""
    await declare(harness, running=5, rate="1/h", burst=1)
    await declare(harness, "each", running=1)
    claim = await _suspended(harness, ("each:a", "smtp"))
    await jobs(harness, 2)
    assert await claims(harness) == []
    await _wake(harness, claim)
    assert [again.job_id for again in await claims(harness)] == [claim.job_id]


@pytest.mark.parametrize("rate", ["3/s", "7/s", "1000/m"])
async def test_the_time_of_the_next_token_is_never_too_early(harness: StoreHarness, rate: str) -> None:
    """At the time that the answer names there is a token, whatever the rate divides."""
    await declare(harness, running=None, rate=rate, burst=1)
    await jobs(harness, 12)
    assert len(await claims(harness)) == 1
    for _ in range(10):
        answer = await look(harness)
        assert answer.limited_at is not None
        harness.now.value = max(answer.limited_at, harness.now())
        assert len((await look(harness)).claims) == 1


async def test_a_claim_that_waited_for_a_key_counts_no_time_twice(backend: Backend) -> None:
    """Its start, and the time up to which tokens are counted, are never older than the last count."""
    if not isinstance(backend, PostgresBackend):
        pytest.skip("PostgreSQL's statement has the time at which it began")
    await backend.clear()
    store = backend.store(None)
    await store.open()
    try:
        await _claim_behind_a_lock(backend, store)
    finally:
        await store.close()


async def _claim_behind_a_lock(backend: PostgresBackend, store: Store) -> None:
    harness = StoreHarness(store, Now(), backend)
    await declare(harness, running=None, rate="1000/s", burst=1000)
    await harness.add(new_job(limits=("smtp",)))
    assert len((await store.claim_limited(request())).claims) == 1
    await harness.add(new_job(limits=("smtp",)))
    async with backend._connection() as holder, backend._connection() as monitor:
        await holder.execute("begin")
        await holder.execute("select from reltask.limit_keys for update")
        claiming = asyncio.create_task(store.claim_limited(request()))
        while not await monitor.fetchval("select exists (select from pg_locks where not granted)"):
            assert not claiming.done()
        counted = await holder.fetchval(
            "update reltask.limit_keys set refilled_at = clock_timestamp(), seq = seq + 1 returning refilled_at"
        )
        await holder.execute("commit")
        assert len((await claiming).claims) == 1
        locked, refilled = await monitor.fetchrow(
            "select max(job.locked_at), max(key.refilled_at) from reltask.jobs as job, reltask.limit_keys as key"
        )
    assert locked >= counted
    assert refilled >= counted


async def test_a_change_of_a_limit_looks_at_every_key_that_is_counted(harness: StoreHarness) -> None:
    """A claim under the old limit may just have sent a job to one where it is not seen yet."""
    await declare(harness, "each", running=1)
    await jobs(harness, 1, limits=("each:a",))
    await claims(harness)
    await declare(harness, "each", running=2)
    if type(harness.store).__name__ == "SqliteStore":
        pytest.skip("one writer")
    assert (await harness.claim()).limited_at is not None
