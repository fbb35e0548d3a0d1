"""Cancelling: unclaimed one-offs end at once; everything else is marked, slot by slot."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from reltask.model.job import Cancellation, Claim, Outcome, State
from tests.store.store_harness import ALIVE, START, StoreHarness, child, new_job, recurring, waiting

DAY = timedelta(days=1)
LATER = START + timedelta(minutes=10)


async def cancelled(harness: StoreHarness, claim: Claim) -> tuple[bool, bool]:
    """What the holder learns: from its heartbeat, and from a look."""
    beat = await harness.store.heartbeat_jobs("alice", [claim.hold], alive_for=ALIVE)
    assert beat.renewed == {claim.hold}
    return claim.hold in beat.cancelled, claim.hold in await harness.store.read_cancelled("alice", [claim.hold])


async def outcomes(harness: StoreHarness, claim: Claim) -> list[Outcome]:
    return [run.outcome for run in await harness.runs(claim.job_id)]


async def test_a_waiting_one_off_ends_at_once(harness: StoreHarness) -> None:
    """Without a run: its ledger row has the fence that the next claim would have had."""
    (job_id,) = await harness.add(new_job(delay=DAY))
    assert await harness.store.cancel_job(job_id) is Cancellation.CANCELLED
    assert await harness.store.read_job(job_id) is None
    (run,) = await harness.runs(job_id)
    assert (run.outcome, run.worker, run.fence, run.error) == (Outcome.CANCELLED, None, 1, None)
    assert await harness.store.audit_slots(kept_for=DAY) == []


async def test_a_paused_one_off_ends_at_once(harness: StoreHarness) -> None:
    """No worker has to claim it."""
    (job_id,) = await harness.add(new_job())
    await harness.store.pause_job(job_id)
    assert await harness.store.cancel_job(job_id) is Cancellation.CANCELLED
    assert await harness.store.read_job(job_id) is None


async def test_what_has_ended_is_not_cancelled(harness: StoreHarness) -> None:
    """A job that is gone, dead or unknown is left as it is."""
    done, dead = await harness.claimed(), await harness.claimed(new_job(max_attempts=1))
    await harness.complete(done)
    await harness.fail(dead)
    before = await harness.snapshot()
    for job_id in (done.job_id, dead.job_id, uuid4()):
        assert await harness.store.cancel_job(job_id) is None
    assert await harness.snapshot() == before


async def test_a_holder_learns_of_it(harness: StoreHarness) -> None:
    """The heartbeat's answer names it, and so does a look; the claim stays the holder's, which ends it."""
    claim = await harness.claimed()
    assert await cancelled(harness, claim) == (False, False)
    assert await harness.store.cancel_job(claim.job_id) is Cancellation.STOPPING
    assert await cancelled(harness, claim) == (True, True)
    assert await harness.store.read_cancelled("bob", [claim.hold]) == set()
    assert await harness.complete(claim, outcome=Outcome.CANCELLED)
    assert await outcomes(harness, claim) == [Outcome.CANCELLED]


async def test_a_claim_renewed_by_its_token_is_named_too(harness: StoreHarness) -> None:
    """The claim's answer may say that it is not cancelled, and a cancel may have come since."""
    token = uuid4()
    claim = await harness.claimed(token=token)
    await harness.store.cancel_job(claim.job_id)
    beat = await harness.store.heartbeat_jobs("alice", [], alive_for=ALIVE, pending=[token])
    assert beat.renewed == beat.cancelled == {claim.hold}


async def test_the_slot_of_a_recurring_job_is_ended_by_a_claim(harness: StoreHarness) -> None:
    """It is due now, the claim says that it is cancelled, and the next slot follows."""
    (job_id,) = await harness.add(recurring(run_at=LATER))
    assert await harness.store.cancel_job(job_id) is Cancellation.STOPPING
    claim = await harness.claim_one()
    assert (claim.cancelled, claim.slot_no, claim.nominal) == (True, 1, LATER)
    assert await harness.complete(claim, outcome=Outcome.CANCELLED, next_run_time=LATER + DAY)
    view = await harness.job(job_id)
    assert (view.slot_no, view.next_run_time, view.state) == (2, LATER + DAY, State.READY)
    harness.now.value = LATER + DAY
    assert not (await harness.claim_one()).cancelled


async def test_a_completion_that_wins_saves_the_next_slot(harness: StoreHarness) -> None:
    """What was cancelled is the slot that has succeeded meanwhile."""
    claim = await harness.claimed(recurring())
    assert await harness.store.cancel_job(claim.job_id) is Cancellation.STOPPING
    assert await harness.complete(claim, next_run_time=LATER)
    harness.now.value = LATER
    following = await harness.claim_one()
    assert (following.slot_no, following.cancelled) == (2, False)
    assert await cancelled(harness, following) == (False, False)


async def test_a_paused_recurring_job_stays_paused(harness: StoreHarness) -> None:
    """The pause is the schedule's; the slot is ended after it."""
    (job_id,) = await harness.add(recurring())
    await harness.store.pause_job(job_id)
    assert await harness.store.cancel_job(job_id) is Cancellation.STOPPING
    assert (await harness.claim()).claims == []
    await harness.store.resume_job(job_id)
    assert (await harness.claim_one()).cancelled


async def test_a_one_off_that_goes_on_is_still_cancelled(harness: StoreHarness) -> None:
    """`Again` begins another slot of the same job, which the caller wants to end."""
    claim = await harness.claimed()
    await harness.store.cancel_job(claim.job_id)
    assert await harness.complete(claim, next_run_time=START, args='{"page":2}')
    harness.now.advance(seconds=1)
    following = await harness.claim_one()
    assert (following.slot_no, following.cancelled) == (2, True)


@pytest.mark.parametrize("way", ["fail", "last failure", "final failure", "release", "starved", "suspend", "lose"])
async def test_a_cancelled_run_that_ends_otherwise_is_followed_by_its_end(harness: StoreHarness, way: str) -> None:
    """It is neither dead nor waits for a delay: the next claim, at once, ends it."""
    claim = await harness.claimed(new_job(max_attempts=None if way == "final failure" else 1))
    await harness.store.cancel_job(claim.job_id)
    match way:
        case "fail" | "last failure":
            assert await harness.fail(claim, delay=DAY)
        case "final failure":
            assert await harness.fail(claim, delay=DAY, final=True)
        case "release":
            assert await harness.release(claim, outcome=Outcome.SNOOZED, delay=DAY)
        case "starved":
            assert await harness.release(claim, outcome=Outcome.ABANDONED, delay=DAY, counted=True)
        case "suspend":
            assert await harness.suspend(claim, wake_at=START + DAY)
        case "lose":
            await harness.lose(claim)
    following = await harness.claim_one()
    assert (following.slot_no, following.cancelled) == (1, True)


async def test_an_end_that_cannot_be_written_is_not_tried_again_at_once(harness: StoreHarness) -> None:
    """A failure of the run that should have ended a cancelled slot waits for its delay, and counts."""
    claim = await harness.claimed(new_job(max_attempts=1))
    await harness.store.cancel_job(claim.job_id)
    assert await harness.fail(claim, delay=DAY, patient=True)
    assert (await harness.job(claim.job_id)).state is State.DEAD


async def test_a_one_off_that_is_being_cancelled_is_not_paused(harness: StoreHarness) -> None:
    """If its holder dies, a worker must be able to claim and end it: also if it was paused before."""
    before, after = await harness.claimed(), await harness.claimed()
    await harness.store.pause_job(before.job_id)
    for claim in (before, after):
        assert await harness.store.cancel_job(claim.job_id) is Cancellation.STOPPING
    assert not await harness.store.pause_job(after.job_id)
    await harness.lose(before)
    assert {claim.cancelled for claim in (await harness.claim(limit=5)).claims} == {True}


async def test_a_suspended_function_ends_with_its_children(harness: StoreHarness) -> None:
    """At once, and so do its children that wait; those that run are stopped."""
    parent = await harness.parent(2)
    running = await harness.claim_child()
    assert await harness.store.cancel_job(parent.job_id) is Cancellation.CANCELLED
    orphans = await harness.store.cancel_children(parents=[parent.job_id])
    assert (len(orphans.ended), orphans.stopping) == (1, [running.job_id])
    assert (await cancelled(harness, running)) == (True, True)
    assert [view.id for view in await harness.store.list_jobs()] == [running.job_id]


async def test_only_the_children_of_these_parents(harness: StoreHarness) -> None:
    """A sweep after a cancel looks at nothing else."""
    first, second = await harness.parent(1), await harness.parent(1)
    for parent in (first, second):
        await harness.store.cancel_job(parent.job_id)
    assert await harness.sweep(parents=[second.job_id]) == 1
    assert [view.parent_id for view in await harness.store.list_jobs()] == [first.job_id]
    assert await harness.sweep(parents=[]) == 0
    assert await harness.sweep() == 1


async def test_a_cancelled_child_is_reported_to_its_parent(harness: StoreHarness) -> None:
    """Its parent waits for its end, whatever it is: once, by a mark."""
    parent = await harness.parent(1)
    (view,) = await harness.store.list_children(parent.job_id)
    assert await harness.store.cancel_job(view.job_id) is Cancellation.CANCELLED
    assert await harness.store.cancel_job(view.job_id) is None
    assert await harness.store.fold_marks() == 1
    again = await harness.claim_one()
    waits = await harness.waits(again)
    assert [(end.job_id, end.outcome) for end in waits.ends] == [(view.job_id, Outcome.CANCELLED)]


async def test_a_suspended_slot_of_a_recurring_function_becomes_due(harness: StoreHarness) -> None:
    """The claim that ends it has its steps, so that they are counted and its children found."""
    claim = await harness.suspended(waiting(), job=recurring())
    assert await harness.store.cancel_job(claim.job_id) is Cancellation.STOPPING
    again = await harness.claim_one()
    assert (again.cancelled, again.steps) == (True, 1)


async def test_a_dead_child_is_no_orphan(harness: StoreHarness) -> None:
    """It is an ordinary dead letter since its end."""
    parent = await harness.claimed()
    await harness.add(child(parent, 0, max_attempts=1))
    await harness.fail(await harness.claim_child())
    await harness.complete(parent)
    assert await harness.sweep(parents=[parent.job_id]) == 0
