"""The table of transitions in `reltask.model.job`, cell by cell: what is not listed changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from reltask.model.job import TRANSITIONS, Claim, Hold, State, Verb
from reltask.model.views import JobView
from tests.store.bench import LOCK, START, Bench, recurring

STATES = [State.READY, State.CLAIMED, State.PAUSED, State.DEAD]
FOLLOWING = START + timedelta(minutes=10)


async def _bring_to(bench: Bench, state: State) -> Claim:
    """A job in that state, and the last claim of it: its second, so that no counter stands at nought."""
    await bench.add(recurring(max_attempts=2 if state is State.DEAD else None))
    await bench.fail(await bench.claim_one())
    claim = await bench.claim_one()
    if state is not State.CLAIMED:
        await bench.fail(claim)
    if state is State.PAUSED:
        await bench.store.pause_job(claim.job_id)
    return claim


async def _heartbeat(bench: Bench, claim: Claim) -> bool:
    return bool((await bench.store.heartbeat_jobs("alice", [claim.hold], alive_for=LOCK)).renewed)


async def _reclaim(bench: Bench, _: Claim) -> bool:
    bench.now.value += LOCK + timedelta(seconds=1)
    return bool(await bench.store.reclaim_jobs())


async def _claim(bench: Bench, _: Claim) -> bool:
    return bool((await bench.claim("bob")).claims)


async def _resume(bench: Bench, claim: Claim) -> bool:
    if (await bench.job(claim.job_id)).state is State.CLAIMED:
        await bench.store.pause_job(claim.job_id)
    return await bench.store.resume_job(claim.job_id)


DEEDS: dict[Verb, Callable[[Bench, Claim], Awaitable[bool]]] = {
    Verb.CLAIM: _claim,
    Verb.HEARTBEAT: _heartbeat,
    Verb.COMPLETE: lambda bench, claim: bench.complete(claim, next_run_time=FOLLOWING),
    Verb.FAIL: lambda bench, claim: bench.fail(claim),
    Verb.RELEASE: lambda bench, claim: bench.release(claim),
    Verb.RECLAIM: _reclaim,
    Verb.PAUSE: lambda bench, claim: bench.store.pause_job(claim.job_id),
    Verb.RESUME: _resume,
    Verb.RETRY: lambda bench, claim: bench.store.retry_job(claim.job_id),
    Verb.DISCARD: lambda bench, claim: bench.store.discard_job(claim.job_id),
}
"""How each verb is done; each says whether the store says that it happened."""


@pytest.mark.parametrize("verb", list(Verb))
@pytest.mark.parametrize("state", STATES)
async def test_transition(bench: Bench, state: State, verb: Verb) -> None:
    """State, fence, attempt, slot number and ledger move as the table says, or not at all."""
    claim = await _bring_to(bench, state)
    before, rows, ledger = await bench.job(claim.job_id), await bench.snapshot(), await bench.runs(claim.job_id)
    assert before.state is state
    won = await DEEDS[verb](bench, claim)
    after = await bench.store.read_job(claim.job_id)
    endings = [run for run in await bench.runs(claim.job_id) if run.outcome.ends_slot]
    transition = TRANSITIONS.get((state, verb))
    assert won == (transition is not None)
    if transition is None:
        assert await bench.snapshot() == rows
        return
    assert (after.state if after else State.GONE) in transition.to
    assert bool(endings) == transition.ends_slot
    if after is None:
        assert endings[0].fence == before.fence + transition.fence
    else:
        _check_counters(before, after, verb)
        assert len(await bench.runs(claim.job_id)) - len(ledger) == (verb in _ENDINGS_OF_RUNS)


_ENDINGS_OF_RUNS = {Verb.COMPLETE, Verb.FAIL, Verb.RELEASE, Verb.RECLAIM}


def _check_counters(before: JobView, after: JobView, verb: Verb) -> None:
    transition = TRANSITIONS[before.state, verb]
    assert after.fence - before.fence == transition.fence
    assert after.slot_no - before.slot_no == transition.ends_slot
    if verb in (Verb.COMPLETE, Verb.RETRY):
        assert after.attempt == 0
    else:
        assert after.attempt - before.attempt == transition.attempt


async def test_pause_goes_on_after_the_run(bench: Bench) -> None:
    """A job paused while claimed is paused when its run ends, however it ends."""
    claim = await _bring_to(bench, State.CLAIMED)
    await bench.store.pause_job(claim.job_id)
    assert (await bench.job(claim.job_id)).state is State.CLAIMED
    await bench.complete(claim, next_run_time=FOLLOWING)
    assert (await bench.job(claim.job_id)).state is State.PAUSED


async def test_dead_while_paused_wants_a_retry_first(bench: Bench) -> None:
    """Dead goes before paused: resuming changes nothing, and a retry leads back to the pause."""
    await bench.add(recurring(max_attempts=1))
    claim = await bench.claim_one()
    await bench.store.pause_job(claim.job_id)
    await bench.fail(claim)
    before = await bench.snapshot()
    assert not await bench.store.resume_job(claim.job_id)
    assert await bench.snapshot() == before
    assert await bench.store.retry_job(claim.job_id)
    assert (await bench.job(claim.job_id)).state is State.PAUSED


@pytest.mark.parametrize("verb", [Verb.PAUSE, Verb.RETRY, Verb.DISCARD])
async def test_unknown_job(bench: Bench, verb: Verb) -> None:
    """An id that is not there: no error, and nothing won."""
    claim = await _bring_to(bench, State.READY)
    await bench.store.discard_job(claim.job_id)
    before = await bench.snapshot()
    assert not await DEEDS[verb](bench, claim)
    assert not await bench.store.resume_job(claim.job_id)
    assert not await bench.store.run_job_now(claim.job_id)
    assert not await bench.store.record_progress("alice", Hold(claim.job_id, 2), "1")
    assert await bench.snapshot() == before
