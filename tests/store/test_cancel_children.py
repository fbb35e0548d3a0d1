"""Cancelling what ended functions have left: by a sweep of its own, never by the end of the parent."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from reltask.model.job import Claim, Outcome
from tests.store.store_harness import START, StoreHarness, child, new_job, recurring, step

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)


async def ended_parent(harness: StoreHarness, count: int) -> Claim:
    """A parent that has ended before this many children."""
    parent = await harness.parent(count)
    await harness.store.run_job_now(parent.job_id)
    assert await harness.complete(await harness.claim_one())
    return parent


async def outcomes(harness: StoreHarness, job_id: UUID) -> list[Outcome]:
    return [run.outcome for run in await harness.runs(job_id)]


async def test_children_of_an_ended_parent_are_cancelled(harness: StoreHarness) -> None:
    """Without a run, with a ledger row that says so, and without a report."""
    parent = await ended_parent(harness, 2)
    left = await harness.store.list_children(parent.job_id)
    assert await harness.sweep() == 2
    for view in left:
        assert await harness.store.read_job(view.job_id) is None
        (run,) = await harness.runs(view.job_id)
        assert (run.outcome, run.worker, run.claimed_at, run.fence) == (Outcome.CANCELLED, None, None, 1)
    snapshot = await harness.snapshot()
    assert (snapshot["child_ends"], snapshot["marks"]) == ([], [])
    assert await harness.sweep() == 0
    assert await harness.store.audit_slots(kept_for=DAY) == []


async def test_children_of_a_discarded_parent_are_cancelled(harness: StoreHarness) -> None:
    """An operator removes a function, and what it had started ends as well."""
    parent = await harness.parent(1)
    assert await harness.store.discard_job(parent.job_id)
    assert await harness.sweep() == 1
    assert await harness.store.list_jobs() == []


async def test_children_of_an_earlier_slot_are_cancelled(harness: StoreHarness) -> None:
    """A recurring parent has gone on; the children of its current slot stay."""
    parent = await harness.claimed(recurring())
    await harness.add(child(parent, 0))
    await harness.complete(parent, next_run_time=START + SECOND)
    harness.now.advance(seconds=1)
    again = await harness.claim_one()
    current = child(again, 0)
    await harness.add(current)
    assert await harness.sweep() == 1
    assert [view.job_id for view in await harness.store.list_children(parent.job_id)] == [current.id]


async def test_children_of_a_living_parent_stay(harness: StoreHarness) -> None:
    """Suspended, claimed, paused or dead: it may still wait for them."""
    parent = await harness.parent(1)
    assert await harness.sweep() == 0
    await harness.store.pause_job(parent.job_id)
    assert await harness.sweep() == 0
    await harness.store.resume_job(parent.job_id)
    await harness.store.run_job_now(parent.job_id)
    again = await harness.claim_one()
    assert await harness.sweep() == 0
    await harness.fail(again, final=True)
    assert await harness.sweep() == 0


async def test_a_running_child_is_asked_to_stop(harness: StoreHarness) -> None:
    """Its slot is cancelled, once; a run that ends without a result is followed by no other."""
    parent = await harness.parent(2)
    running_child, other = await harness.claim_child(), await harness.claim_child()
    await harness.store.discard_job(parent.job_id)
    orphans = await harness.store.cancel_children()
    assert (orphans.ended, set(orphans.stopping)) == ([], {running_child.job_id, other.job_id})
    assert (await harness.store.cancel_children()).stopping == []
    holds = [running_child.hold, other.hold]
    assert await harness.store.read_cancelled("alice", holds) == set(holds)
    assert await harness.complete(running_child, result="1")
    await harness.fail(other)
    assert await harness.sweep() == 1
    assert await outcomes(harness, running_child.job_id) == [Outcome.SUCCEEDED]
    assert await outcomes(harness, other.job_id) == [Outcome.FAILED, Outcome.CANCELLED]
    assert await harness.store.audit_slots(kept_for=DAY) == []


async def test_the_steps_of_a_cancelled_child_are_counted(harness: StoreHarness) -> None:
    """They are pruned with its last row."""
    parent = await harness.parent(1)
    claim = await harness.claim_child()
    await harness.record(claim, step())
    await harness.suspend(claim)
    await harness.store.discard_job(parent.job_id)
    assert await harness.sweep() == 1
    assert (await harness.runs(claim.job_id))[-1].steps == 1


async def test_children_of_children_follow(harness: StoreHarness) -> None:
    """A cancelled child is an ended parent: its own children are found by the next call."""
    parent = await harness.parent(1)
    middle = await harness.claim_child()
    await harness.add(child(middle, 0, task="leaf"))
    await harness.suspend(middle)
    await harness.store.discard_job(parent.job_id)
    assert [await harness.sweep() for _ in range(3)] == [1, 1, 0]
    assert await harness.store.list_jobs() == []


async def test_a_call_cancels_a_limited_number(harness: StoreHarness) -> None:
    """The rest is for the next call."""
    await ended_parent(harness, 3)
    assert [await harness.sweep(limit=2) for _ in range(3)] == [2, 1, 0]


async def test_jobs_without_a_parent_are_not_cancelled(harness: StoreHarness) -> None:
    """Nor is a dead child, which is an ordinary job since its end."""
    parent = await harness.parent(1, max_attempts=1)
    await harness.fail(await harness.claim_child())
    await harness.add(new_job())
    await harness.store.discard_job(parent.job_id)
    assert await harness.sweep() == 0
    assert len(await harness.store.list_jobs()) == 2
