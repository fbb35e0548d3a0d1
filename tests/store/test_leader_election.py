"""The requirements' tests of locking, failover and completion (task groups 5 and 7), under their names."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from reltask.model.job import Outcome, State
from reltask.stores.store import Store
from tests.store.store_harness import LOCK, START, StoreHarness, new_job, recurring, request


async def test_successful_lock_acquisition(harness: StoreHarness) -> None:
    """A due job that is not locked is locked by the claiming worker."""
    (job_id,) = await harness.add(recurring())
    claim = await harness.claim_one("alice")
    view = await harness.job(job_id)
    assert (claim.job_id, view.locked_by, view.locked_at) == (job_id, "alice", harness.now())


async def test_failed_lock_acquisition_when_already_locked(harness: StoreHarness, rival: Store) -> None:
    """Another worker gets nothing, and the lock is unchanged."""
    await harness.claimed(recurring())
    before = await harness.snapshot()
    assert (await rival.claim_jobs(request("bob"))).claims == []
    assert await harness.snapshot() == before


async def test_stale_lock_detection(harness: StoreHarness) -> None:
    """A lock without a heartbeat for its timeout counts as expired, and not before."""
    await harness.claimed(recurring())
    harness.now.value = START + LOCK
    assert (await harness.store.read_status()).expired == 0
    harness.now.advance(microseconds=1)
    assert (await harness.store.read_status()).expired == 1


async def test_stale_lock_reclamation(harness: StoreHarness, rival: Store) -> None:
    """A dead worker's slot can be claimed again by another when its lock timeout has ended."""
    dead = await harness.claimed(recurring())
    harness.now.value = START + LOCK + timedelta(microseconds=1)
    assert [lost.worker for lost in await rival.reclaim_jobs()] == ["alice"]
    (claim,) = (await rival.claim_jobs(request("bob"))).claims
    assert (claim.job_id, claim.slot_no, claim.fence) == (dead.job_id, dead.slot_no, dead.fence + 1)
    assert not await harness.complete(dead, next_run_time=harness.now())
    assert (await harness.job(claim.job_id)).locked_by == "bob"


async def test_lock_release_on_completion(harness: StoreHarness) -> None:
    """Completion frees the lock in the same transaction."""
    claim = await harness.claimed(recurring())
    await harness.complete(claim, next_run_time=START + timedelta(minutes=10))
    view = await harness.job(claim.job_id)
    assert (view.state, view.locked_by, view.locked_at) == (State.READY, None, None)


async def test_lock_release_on_failure(harness: StoreHarness) -> None:
    """A failure clears the lock at once: another worker may retry."""
    claim = await harness.claimed(recurring())
    await harness.fail(claim)
    assert (await harness.claim_one("bob")).job_id == claim.job_id


async def test_failure_preserves_next_run_time(harness: StoreHarness) -> None:
    """The slot stays due under its nominal time."""
    claim = await harness.claimed(recurring())
    harness.now.advance(seconds=30)
    await harness.fail(claim, delay=timedelta(seconds=1))
    assert (await harness.job(claim.job_id)).next_run_time == claim.nominal


async def test_completion_updates_last_run_time(harness: StoreHarness) -> None:
    """By the database's clock, at the completion; a failure does not change it."""
    claim = await harness.claimed(recurring())
    await harness.fail(claim)
    assert (await harness.job(claim.job_id)).last_run_time is None
    again = await harness.claim_one()
    harness.now.advance(seconds=5)
    await harness.complete(again, next_run_time=START + timedelta(minutes=10))
    assert (await harness.job(claim.job_id)).last_run_time == harness.now()


async def test_next_run_time_counts_from_the_lock_not_from_the_completion(harness: StoreHarness) -> None:
    """The schedule counts from the claim's time, whatever the heartbeats and the task's duration."""
    claim = await harness.claimed(recurring())
    for _ in range(3):
        harness.now.advance(seconds=30)
        await harness.store.heartbeat_jobs("alice", [claim.hold], alive_for=LOCK)
    await harness.complete(claim, next_run_time=claim.slot_started_at + timedelta(minutes=10))
    assert (await harness.job(claim.job_id)).next_run_time == START + timedelta(minutes=10)


async def test_heartbeat_updates_the_lock(harness: StoreHarness) -> None:
    """`heartbeat_at` becomes the database's time, the lock is extended from there, and `locked_at` stays."""
    claim = await harness.claimed(recurring())
    harness.now.advance(seconds=30)
    await harness.store.heartbeat_jobs("alice", [claim.hold], alive_for=LOCK)
    view = await harness.job(claim.job_id)
    assert (view.heartbeat_at, view.lock_expires_at) == (harness.now(), harness.now() + LOCK)
    assert view.locked_at == START


async def test_lock_contention_only_one_acquires(harness: StoreHarness) -> None:
    """Ten workers with their own connections claim one job at the same moment: one gets it."""
    await harness.add(recurring())
    stores = [harness.backend.store(harness.now) for _ in range(10)]
    for store in stores:
        await store.open()
    answers = await asyncio.gather(*(store.claim_jobs(request(f"w{n}")) for n, store in enumerate(stores)))
    for store in stores:
        await store.close()
    winners = [n for n, answer in enumerate(answers) if answer.claims]
    assert len(winners) == 1
    (view,) = await harness.store.list_jobs()
    assert (view.locked_by, view.fence, view.attempt) == (f"w{winners[0]}", 1, 1)


async def test_abandonment_releases_the_lock_and_keeps_the_slot(harness: StoreHarness) -> None:
    """A worker that gives up its run leaves next_run_time unchanged."""
    claim = await harness.claimed(new_job())
    await harness.release(claim, outcome=Outcome.ABANDONED)
    view = await harness.job(claim.job_id)
    assert (view.locked_by, view.next_run_time, view.slot_no) == (None, claim.nominal, 1)
