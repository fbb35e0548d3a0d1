"""The requirements' own tests of locking, failover and completion (task groups 5 and 7), under recognisable names."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from reltask.model.job import Outcome, State
from reltask.stores.store import Store
from tests.store.bench import LOCK, START, Bench, new_job, recurring, request


async def test_successful_lock_acquisition(bench: Bench) -> None:
    """A due job that nobody holds is locked by who asks."""
    (job_id,) = await bench.add(recurring())
    claim = await bench.claim_one("alice")
    view = await bench.job(job_id)
    assert (claim.job_id, view.locked_by, view.locked_at) == (job_id, "alice", bench.now())


async def test_failed_lock_acquisition_when_already_locked(bench: Bench, rival: Store) -> None:
    """Another worker asks in vain, and the lock stays as it was."""
    await bench.claimed(recurring())
    before = await bench.snapshot()
    assert (await rival.claim_jobs(request("bob"))).claims == []
    assert await bench.snapshot() == before


async def test_stale_lock_detection(bench: Bench) -> None:
    """A lock without a heartbeat for its timeout is counted as expired, and not a moment before."""
    await bench.claimed(recurring())
    bench.now.value = START + LOCK
    assert (await bench.store.read_status()).expired == 0
    bench.now.advance(microseconds=1)
    assert (await bench.store.read_status()).expired == 1


async def test_stale_lock_reclamation(bench: Bench, rival: Store) -> None:
    """A dead worker's slot can be claimed again by another when its lock timeout has ended."""
    dead = await bench.claimed(recurring())
    bench.now.value = START + LOCK + timedelta(microseconds=1)
    assert [lost.worker for lost in await rival.reclaim_jobs()] == ["alice"]
    (claim,) = (await rival.claim_jobs(request("bob"))).claims
    assert (claim.job_id, claim.slot_no, claim.fence) == (dead.job_id, dead.slot_no, dead.fence + 1)
    assert not await bench.complete(dead, next_run_time=bench.now())
    assert (await bench.job(claim.job_id)).locked_by == "bob"


async def test_lock_release_on_completion(bench: Bench) -> None:
    """Completion frees the lock in the same transaction."""
    claim = await bench.claimed(recurring())
    await bench.complete(claim, next_run_time=START + timedelta(minutes=10))
    view = await bench.job(claim.job_id)
    assert (view.state, view.locked_by, view.locked_at) == (State.READY, None, None)


async def test_lock_release_on_failure(bench: Bench) -> None:
    """Failure frees the lock at once: another worker may retry."""
    claim = await bench.claimed(recurring())
    await bench.fail(claim)
    assert (await bench.claim_one("bob")).job_id == claim.job_id


async def test_failure_preserves_next_run_time(bench: Bench) -> None:
    """The slot stays due under its own nominal time."""
    claim = await bench.claimed(recurring())
    bench.now.advance(seconds=30)
    await bench.fail(claim, delay=timedelta(seconds=1))
    assert (await bench.job(claim.job_id)).next_run_time == claim.nominal


async def test_completion_updates_last_run_time(bench: Bench) -> None:
    """By the database's clock, at the completion; a failure does not touch it."""
    claim = await bench.claimed(recurring())
    await bench.fail(claim)
    assert (await bench.job(claim.job_id)).last_run_time is None
    again = await bench.claim_one()
    bench.now.advance(seconds=5)
    await bench.complete(again, next_run_time=START + timedelta(minutes=10))
    assert (await bench.job(claim.job_id)).last_run_time == bench.now()


async def test_next_run_time_counts_from_the_lock_not_from_the_completion(bench: Bench) -> None:
    """What the schedule counts from is the claim's time, untouched by heartbeats and by how long the task takes."""
    claim = await bench.claimed(recurring())
    for _ in range(3):
        bench.now.advance(seconds=30)
        await bench.store.heartbeat_jobs("alice", [claim.hold], alive_for=LOCK)
    await bench.complete(claim, next_run_time=claim.slot_started_at + timedelta(minutes=10))
    assert (await bench.job(claim.job_id)).next_run_time == START + timedelta(minutes=10)


async def test_heartbeat_updates_the_lock(bench: Bench) -> None:
    """The lock lives on from the beat."""
    claim = await bench.claimed(recurring())
    bench.now.advance(seconds=30)
    await bench.store.heartbeat_jobs("alice", [claim.hold], alive_for=LOCK)
    assert (await bench.job(claim.job_id)).lock_expires_at == bench.now() + LOCK


async def test_lock_contention_only_one_acquires(bench: Bench) -> None:
    """Ten workers with connections of their own ask for one job at the same moment: one gets it."""
    await bench.add(recurring())
    stores = [bench.backend.store(bench.now) for _ in range(10)]
    for store in stores:
        await store.open()
    answers = await asyncio.gather(*(store.claim_jobs(request(f"w{n}")) for n, store in enumerate(stores)))
    for store in stores:
        await store.close()
    winners = [n for n, answer in enumerate(answers) if answer.claims]
    assert len(winners) == 1
    (view,) = await bench.store.list_jobs()
    assert (view.locked_by, view.fence, view.attempt) == (f"w{winners[0]}", 1, 1)


async def test_abandonment_releases_the_lock_and_keeps_the_slot(bench: Bench) -> None:
    """A worker that gives up its run leaves next_run_time as it was."""
    claim = await bench.claimed(new_job())
    await bench.release(claim, outcome=Outcome.ABANDONED)
    view = await bench.job(claim.job_id)
    assert (view.locked_by, view.next_run_time, view.slot_no) == (None, claim.nominal, 1)
