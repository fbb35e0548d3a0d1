"""Every write that carries an owner and a fence: with the wrong ones it changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import uuid4

import pytest

from reltask.model.job import Claim, Completion, Failure, Hold, Outcome, Release
from reltask.stores.store import Store
from tests.store.store_harness import LOCK, START, StoreHarness, recurring

Write = Callable[[Store, str, Hold], Awaitable[bool]]


async def _complete(store: Store, worker: str, hold: Hold) -> bool:
    following = START + timedelta(days=1)
    completion = Completion(hold=hold, next_run_time=following, skipped=(START + timedelta(hours=1),), result="1")
    return bool(await store.complete_jobs(worker, [completion]))


async def _complete_one_off(store: Store, worker: str, hold: Hold) -> bool:
    return bool(await store.complete_jobs(worker, [Completion(hold=hold)]))


async def _fail(store: Store, worker: str, hold: Hold) -> bool:
    return bool(await store.fail_jobs(worker, [Failure(hold=hold, error="late", delay=timedelta(hours=1))]))


async def _release(store: Store, worker: str, hold: Hold) -> bool:
    return bool(await store.release_jobs(worker, [Release(hold=hold, outcome=Outcome.ABANDONED, delay=LOCK)]))


async def _heartbeat(store: Store, worker: str, hold: Hold) -> bool:
    return bool((await store.heartbeat_jobs(worker, [hold], alive_for=LOCK)).renewed)


async def _progress(store: Store, worker: str, hold: Hold) -> bool:
    return await store.record_progress(worker, hold, '"late"')


async def _read(store: Store, worker: str, hold: Hold) -> bool:
    return bool(await store.read_holds(worker, [hold]))


WRITES = [_complete, _complete_one_off, _fail, _release, _heartbeat, _progress, _read]


async def _current(harness: StoreHarness) -> Claim:
    """A job in its third run, so that older and newer fences than the valid one exist."""
    first = await harness.claimed(recurring())
    await harness.fail(first)
    second = await harness.claim_one()
    await harness.release(second)
    return await harness.claim_one()


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("wrong", ["older fence", "newer fence", "other worker", "other job"])
async def test_wrong_owner_or_fence_changes_nothing(harness: StoreHarness, write: Write, wrong: str) -> None:
    """id, owner and fence must all match, or no column of any row changes."""
    claim = await _current(harness)
    worker, hold = {
        "older fence": ("alice", Hold(claim.job_id, claim.fence - 1)),
        "newer fence": ("alice", Hold(claim.job_id, claim.fence + 1)),
        "other worker": ("bob", claim.hold),
        "other job": ("alice", Hold(uuid4(), claim.fence)),
    }[wrong]
    before = await harness.snapshot()
    harness.now.advance(seconds=1)
    assert not await write(harness.store, worker, hold)
    assert await harness.snapshot() == before


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("settled", ["completed", "failed", "released", "lost", "reclaimed and claimed by another"])
async def test_settled_run_writes_no_more(harness: StoreHarness, write: Write, settled: str) -> None:
    """Once a run has ended, in any way, its owner's late writes are refused and the new state stays."""
    claim = await _current(harness)
    match settled:
        case "completed":
            await harness.complete(claim, next_run_time=START + timedelta(minutes=10))
        case "failed":
            await harness.fail(claim)
        case "released":
            await harness.release(claim)
        case _:
            await harness.lose(claim)
    if settled.endswith("another"):
        await harness.claim_one("bob")
    before = await harness.snapshot()
    harness.now.advance(seconds=1)
    assert not await write(harness.store, "alice", claim.hold)
    assert await harness.snapshot() == before


@pytest.mark.parametrize("write", WRITES)
async def test_reclaimed_and_claimed_again_by_the_same_worker(harness: StoreHarness, write: Write) -> None:
    """The owner's name is not enough: a worker's old run cannot write into its new one."""
    claim = await _current(harness)
    await harness.lose(claim)
    await harness.claim_one()
    before = await harness.snapshot()
    harness.now.advance(seconds=1)
    assert not await write(harness.store, "alice", claim.hold)
    assert await harness.snapshot() == before


@pytest.mark.parametrize("write", WRITES)
async def test_right_owner_and_fence_are_accepted(harness: StoreHarness, write: Write) -> None:
    """The counterpart: with the right ones these writes are accepted."""
    claim = await _current(harness)
    harness.now.advance(seconds=1)
    assert await write(harness.store, "alice", claim.hold)
