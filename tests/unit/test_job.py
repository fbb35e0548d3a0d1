"""The transition table: what may happen to a job, and what each step does to its counters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reltask.model.job import SLOT_ENDINGS, TRANSITIONS, Claim, Hold, Outcome, State, Verb

ALLOWED = {
    State.READY: {Verb.CLAIM, Verb.PAUSE, Verb.DISCARD, Verb.CANCEL},
    State.CLAIMED: {
        Verb.HEARTBEAT,
        Verb.COMPLETE,
        Verb.FAIL,
        Verb.RELEASE,
        Verb.SUSPEND,
        Verb.RECLAIM,
        Verb.PAUSE,
        Verb.RESUME,
        Verb.CANCEL,
    },
    State.SUSPENDED: {Verb.CLAIM, Verb.PAUSE, Verb.DISCARD, Verb.CANCEL},
    State.PAUSED: {Verb.RESUME, Verb.DISCARD, Verb.CANCEL},
    State.DEAD: {Verb.RETRY, Verb.DISCARD},
    State.GONE: set(),
}


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("state", State)
def test_every_pair(state: State, verb: Verb) -> None:
    """Each verb is allowed in exactly the states listed here; elsewhere it changes nothing."""
    assert ((state, verb) in TRANSITIONS) == (verb in ALLOWED[state])


def test_fences_never_shrink() -> None:
    """The fence grows by one at a claim, and where a job is removed without one; nothing lowers it."""
    growing = {verb for (_, verb), transition in TRANSITIONS.items() if transition.fence == 1}
    assert growing == {Verb.CLAIM, Verb.DISCARD, Verb.CANCEL}
    assert {transition.fence for transition in TRANSITIONS.values()} == {0, 1}


def test_attempts() -> None:
    """An attempt is counted at the claim, given back by a release or a suspension, and changed by nothing else."""
    changing = {verb: transition.attempt for (_, verb), transition in TRANSITIONS.items() if transition.attempt}
    assert changing == {Verb.CLAIM: 1, Verb.RELEASE: -1, Verb.SUSPEND: -1}


def test_what_leaves_claimed() -> None:
    """A claim ends by complete, fail, release, suspend or reclaim; pausing and discarding wait for its end."""
    leaving = {
        verb
        for (state, verb), transition in TRANSITIONS.items()
        if state is State.CLAIMED and State.CLAIMED not in transition.to
    }
    assert leaving == {Verb.COMPLETE, Verb.FAIL, Verb.RELEASE, Verb.SUSPEND, Verb.RECLAIM}


def test_only_a_claim_leads_to_claimed() -> None:
    """Only a claim of a ready or suspended job takes its lock, so a paused or dead job never runs."""
    taking = {
        (state, verb)
        for (state, verb), transition in TRANSITIONS.items()
        if State.CLAIMED in transition.to and state is not State.CLAIMED
    }
    assert taking == {(State.READY, Verb.CLAIM), (State.SUSPENDED, Verb.CLAIM)}


def test_dead_is_reached_by_counted_runs_only() -> None:
    """A dead letter comes from a failed or a lost run, or from a released one whose attempt counts."""
    killing = {verb for (_, verb), transition in TRANSITIONS.items() if State.DEAD in transition.to}
    assert killing == {Verb.FAIL, Verb.RECLAIM, Verb.RELEASE}


def test_pausing_outlives_a_run() -> None:
    """A claimed job that ends its claim can have been paused meanwhile."""
    for verb in (Verb.COMPLETE, Verb.FAIL, Verb.RELEASE, Verb.RECLAIM):
        assert {State.READY, State.PAUSED} <= TRANSITIONS[State.CLAIMED, verb].to


def test_slots_end_by_completing_discarding_or_cancelling() -> None:
    """Only these end a slot, and only they may remove the job."""
    ending = {verb for (_, verb), transition in TRANSITIONS.items() if transition.ends_slot}
    removing = {verb for (_, verb), transition in TRANSITIONS.items() if State.GONE in transition.to}
    assert ending == removing == {Verb.COMPLETE, Verb.DISCARD, Verb.CANCEL}


def test_no_dead_end() -> None:
    """From every state but gone, gone can be reached: no job is stuck by construction."""
    leading_out = {State.GONE}
    for _ in State:
        leading_out |= {state for (state, _), transition in TRANSITIONS.items() if transition.to & leading_out}
    assert leading_out == set(State)


@given(data=st.data(), steps=st.integers(0, 60))
def test_any_walk(data: st.DataObject, steps: int) -> None:
    """On any path through the table the fence never shrinks, a claim always raises it, attempts never fall below 0."""
    state, fence, attempt = State.READY, 0, 0
    for _ in range(steps):
        verbs = sorted(verb for (source, verb) in TRANSITIONS if source is state)
        if not verbs:
            return
        verb = data.draw(st.sampled_from(verbs))
        transition = TRANSITIONS[state, verb]
        assert transition.fence == 1 or (transition.fence == 0 and verb is not Verb.CLAIM)
        fence, attempt = fence + transition.fence, attempt + transition.attempt
        assert attempt >= 0
        assert fence >= attempt
        state = data.draw(st.sampled_from(sorted(transition.to)))


@pytest.mark.parametrize("outcome", Outcome)
def test_outcomes_that_end_a_slot(outcome: Outcome) -> None:
    """Success, cancellation, skipping and discarding end a slot; after anything else it is tried again."""
    ends = outcome in {Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.SKIPPED, Outcome.DISCARDED}
    assert outcome.ends_slot is ends
    assert (outcome in SLOT_ENDINGS) is ends


def claim(*, fence: int = 1, slot_no: int = 1) -> Claim:
    noon = datetime(2025, 6, 11, 12, 0, tzinfo=UTC)
    return Claim(
        job_id=UUID(int=7),
        fence=fence,
        task="report",
        key=None,
        args="{}",
        queue="default",
        priority=5,
        schedule=None,
        slot_no=slot_no,
        nominal=noon,
        due_at=noon,
        slot_started_at=noon,
        locked_at=noon,
        attempt=fence,
        max_attempts=None,
        lock_timeout=timedelta(minutes=2),
        isolated=False,
    )


def test_a_claim_presents_job_and_fence() -> None:
    """The hold of a run's writes names its claim, not only the job."""
    assert claim(fence=3).hold == Hold(UUID(int=7), 3)


def test_idempotency_key() -> None:
    """The key is the same for every run of a slot, and different for every other slot."""
    assert claim(fence=1).idempotency_key == claim(fence=2).idempotency_key
    assert claim(slot_no=1).idempotency_key != claim(slot_no=2).idempotency_key
