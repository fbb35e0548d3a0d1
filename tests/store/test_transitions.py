"""The transition table in `reltask.model.job`, cell by cell: what is not listed changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from reltask.model.job import TRANSITIONS, Claim, Hold, State, Verb
from reltask.model.views import JobView
from tests.store.store_harness import LOCK, START, StoreHarness, recurring

STATES = [State.READY, State.CLAIMED, State.SUSPENDED, State.PAUSED, State.DEAD]
FOLLOWING = START + timedelta(minutes=10)


async def _bring_to(harness: StoreHarness, state: State) -> Claim:
    """A job in that state, and its last claim: the second one, so that no counter is 0."""
    await harness.add(recurring(max_attempts=2 if state is State.DEAD else None))
    await harness.fail(await harness.claim_one())
    claim = await harness.claim_one()
    if state is State.SUSPENDED:
        await harness.suspend(claim, wake_at=START)
    elif state is not State.CLAIMED:
        await harness.fail(claim)
    if state is State.PAUSED:
        await harness.store.pause_job(claim.job_id)
    return claim


async def _heartbeat(harness: StoreHarness, claim: Claim) -> bool:
    return bool((await harness.store.heartbeat_jobs("alice", [claim.hold], alive_for=LOCK)).renewed)


async def _reclaim(harness: StoreHarness, _: Claim) -> bool:
    harness.now.value += LOCK + timedelta(seconds=1)
    return bool(await harness.store.reclaim_jobs())


async def _claim(harness: StoreHarness, _: Claim) -> bool:
    return bool((await harness.claim("bob")).claims)


async def _resume(harness: StoreHarness, claim: Claim) -> bool:
    if (await harness.job(claim.job_id)).state is State.CLAIMED:
        await harness.store.pause_job(claim.job_id)
    return await harness.store.resume_job(claim.job_id)


async def _cancel(harness: StoreHarness, claim: Claim) -> bool:
    return await harness.store.cancel_job(claim.job_id) is not None


DEEDS: dict[Verb, Callable[[StoreHarness, Claim], Awaitable[bool]]] = {
    Verb.CLAIM: _claim,
    Verb.HEARTBEAT: _heartbeat,
    Verb.COMPLETE: lambda harness, claim: harness.complete(claim, next_run_time=FOLLOWING),
    Verb.FAIL: lambda harness, claim: harness.fail(claim),
    Verb.RELEASE: lambda harness, claim: harness.release(claim),
    Verb.SUSPEND: lambda harness, claim: harness.suspend(claim),
    Verb.RECLAIM: _reclaim,
    Verb.PAUSE: lambda harness, claim: harness.store.pause_job(claim.job_id),
    Verb.RESUME: _resume,
    Verb.RETRY: lambda harness, claim: harness.store.retry_job(claim.job_id),
    Verb.DISCARD: lambda harness, claim: harness.store.discard_job(claim.job_id),
    Verb.CANCEL: _cancel,
}
"""How each verb is called. Each returns whether the store reports a change."""


@pytest.mark.parametrize("verb", list(Verb))
@pytest.mark.parametrize("state", STATES)
async def test_transition(harness: StoreHarness, state: State, verb: Verb) -> None:
    """State, fence, attempt, slot number and ledger change as the table says, or not at all."""
    claim = await _bring_to(harness, state)
    before, rows, ledger = await harness.job(claim.job_id), await harness.snapshot(), await harness.runs(claim.job_id)
    assert before.state is state
    won = await DEEDS[verb](harness, claim)
    after = await harness.store.read_job(claim.job_id)
    endings = [run for run in await harness.runs(claim.job_id) if run.outcome.ends_slot]
    transition = TRANSITIONS.get((state, verb))
    assert won == (transition is not None)
    if transition is None:
        assert await harness.snapshot() == rows
        return
    assert (after.state if after else State.GONE) in transition.to
    assert bool(endings) == (transition.ends_slot and verb is not Verb.CANCEL)  # a recurring job is not ended here
    if after is None:
        assert endings[0].fence == before.fence + transition.fence
    else:
        _check_counters(before, after, verb)
        assert len(await harness.runs(claim.job_id)) - len(ledger) == (verb in _ENDINGS_OF_RUNS)


_ENDINGS_OF_RUNS = {Verb.COMPLETE, Verb.FAIL, Verb.RELEASE, Verb.SUSPEND, Verb.RECLAIM}


def _check_counters(before: JobView, after: JobView, verb: Verb) -> None:
    if verb is Verb.CANCEL:
        assert (after.fence, after.slot_no, after.attempt) == (before.fence, before.slot_no, before.attempt)
        return
    transition = TRANSITIONS[before.state, verb]
    assert after.fence - before.fence == transition.fence
    assert after.slot_no - before.slot_no == transition.ends_slot
    if verb in (Verb.COMPLETE, Verb.RETRY):
        assert after.attempt == 0
    else:
        assert after.attempt - before.attempt == transition.attempt


async def test_pause_stays_after_the_run(harness: StoreHarness) -> None:
    """A job paused while claimed is paused when its run ends, in any way."""
    claim = await _bring_to(harness, State.CLAIMED)
    await harness.store.pause_job(claim.job_id)
    assert (await harness.job(claim.job_id)).state is State.CLAIMED
    await harness.complete(claim, next_run_time=FOLLOWING)
    assert (await harness.job(claim.job_id)).state is State.PAUSED


async def test_dead_while_paused_needs_a_retry_first(harness: StoreHarness) -> None:
    """Dead comes before paused: resuming changes nothing, and a retry makes it paused again."""
    await harness.add(recurring(max_attempts=1))
    claim = await harness.claim_one()
    await harness.store.pause_job(claim.job_id)
    await harness.fail(claim)
    before = await harness.snapshot()
    assert not await harness.store.resume_job(claim.job_id)
    assert await harness.snapshot() == before
    assert await harness.store.retry_job(claim.job_id)
    assert (await harness.job(claim.job_id)).state is State.PAUSED


@pytest.mark.parametrize("verb", [Verb.PAUSE, Verb.RETRY, Verb.DISCARD, Verb.CANCEL])
async def test_unknown_job(harness: StoreHarness, verb: Verb) -> None:
    """An unknown id is no error, and changes nothing."""
    claim = await _bring_to(harness, State.READY)
    await harness.store.discard_job(claim.job_id)
    before = await harness.snapshot()
    assert not await DEEDS[verb](harness, claim)
    assert not await harness.store.resume_job(claim.job_id)
    assert not await harness.store.run_job_now(claim.job_id)
    assert not await harness.store.record_progress("alice", Hold(claim.job_id, 2), "1")
    assert await harness.snapshot() == before
