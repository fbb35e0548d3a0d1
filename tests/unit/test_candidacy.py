"""The decisions of a candidate for a lease: its turn, how long it trusts itself, and what it never does again."""

from __future__ import annotations

import heapq
import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reltask.leases import candidacy
from reltask.leases.candidacy import (
    FEW,
    HINTED,
    RESIGNED,
    ROTATED,
    STALLED,
    STEP,
    TAKEN,
    UNRENEWED,
    BeatLease,
    Candidacy,
    LeaseAction,
    LoseLease,
    ResignLease,
    TryLease,
    WinLease,
    seconds_to_turn,
    spacing_of,
)
from reltask.model.lease import Grant, LeaseAnswer, Term

TTL = timedelta(seconds=10)
TRUST = 10 - 10 / 6
"""How long a lease of ten seconds is trusted, in seconds after the send."""
START = datetime(2026, 1, 1, tzinfo=UTC)


def make(**options: Any) -> Candidacy:
    return Candidacy(name="reports", holder="me", ttl=TTL, rng=random.Random(1), **options)


def answer(term: int | None = None, *, left: float = 10.0, rank: int = 0, waiting: int = 1) -> LeaseAnswer:
    return LeaseAnswer(term=term, now=START, expires_at=START + timedelta(seconds=left), rank=rank, waiting=waiting)


def tried(candidate: Candidacy, now: float = 0.0) -> TryLease:
    (action,) = candidate.tick(now)
    assert isinstance(action, TryLease)
    return action


def holding(**options: Any) -> Candidacy:
    """A candidate that leads since 0.0, in term 7."""
    candidate = make(**options)
    (won,) = candidate.answered(tried(candidate), answer(7), sent_at=0.0, now=0.1)
    assert isinstance(won, WinLease)
    assert won.term == Term("reports", 7)
    return candidate


def is_held(candidate: Candidacy, now: float) -> bool:
    return candidate.tenure is not None and candidate.tenure.is_held(now)


# Turns

waiters = st.integers(1, 300)
lengths = st.floats(0.001, 100)


@given(waiting=waiters, left=lengths, offset=st.floats(0, 1e6), seconds=st.floats(0.5, 3600))
def test_a_candidate_tries_within_a_spacing_after_the_end(
    waiting: int, left: float, offset: float, seconds: float
) -> None:
    """No candidate tries before the lease can have ended, no two at once, and together at most once per spacing."""
    ttl, now = timedelta(seconds=seconds), START + timedelta(seconds=offset)
    spacing = spacing_of(ttl)
    refused = LeaseAnswer(term=None, now=now, expires_at=now + timedelta(seconds=left))
    left = (refused.expires_at - now).total_seconds()
    turns = sorted(seconds_to_turn(refused, rank=rank, waiting=waiting, ttl=ttl) for rank in range(waiting))
    assert left - 1e-5 <= turns[0] <= left + spacing + 1e-5
    assert all(after - before >= min(STEP, spacing) - 1e-4 for before, after in pairwise(turns))
    assert turns[-1] <= left + waiting * spacing + 1e-5
    rate = waiting / max(FEW * seconds, turns[-1] - turns[0] + spacing)
    assert rate <= 1 / spacing * 1.001


@given(rank=st.integers(0, 299), seen=st.lists(st.floats(0, 40), min_size=2, max_size=5))
def test_a_candidates_turn_does_not_depend_on_when_it_last_tried(rank: int, seen: list[float]) -> None:
    """Turns follow the database's clock, which is the same for all candidates."""
    end = START + timedelta(seconds=50)
    turns = []
    for second in seen:
        now = START + timedelta(seconds=second)
        refused = LeaseAnswer(term=None, now=now, expires_at=end)
        turns.append(second + seconds_to_turn(refused, rank=rank, waiting=300, ttl=TTL))
    assert max(turns) - min(turns) < 1e-4


def test_a_few_that_wait_try_when_the_lease_ends() -> None:
    """One after the other. If the lease has ended but its row is locked, they try again soon."""
    ended = [seconds_to_turn(answer(left=7.5), rank=rank, waiting=4, ttl=TTL) for rank in range(4)]
    assert ended == pytest.approx([7.5, 7.52, 7.54, 7.56])
    assert seconds_to_turn(answer(left=-1), rank=0, waiting=1, ttl=TTL) == 1.0


def test_spacing_follows_the_ttl() -> None:
    """A fifth of the TTL, at most two seconds."""
    assert [spacing_of(timedelta(seconds=s)) for s in (0.5, 1, 5, 10, 600)] == [0.1, 0.2, 1.0, 2.0, 2.0]


def test_a_refused_candidate_waits_for_its_turn() -> None:
    """It reports how long it waits, and is counted until well after its turn."""
    candidate = make()
    first = tried(candidate)
    assert first.request.waits == 2 * (TTL + timedelta(seconds=4))
    assert candidate.answered(first, answer(left=6, rank=3, waiting=100), sent_at=0.0, now=1.0) == []
    due = candidate.next_at()
    assert due is not None
    assert due >= 7.0
    assert candidate.tick(due - 0.001) == []
    again = tried(candidate, due)
    assert again.request.waits == 2 * (TTL + timedelta(seconds=200))
    assert again.request.acquisition == first.request.acquisition


# Hints


@pytest.mark.parametrize("seconds", [5.0, 60.0])
def test_many_that_start_together_know_their_number_soon(seconds: float) -> None:
    """From a minute after the last one's start they try once per spacing in all, whatever each saw at first."""
    tries = tries_of(300, begun_within=seconds)
    for minute in range(1, 10):
        begins = seconds + 60.0 * minute
        assert sum(begins <= at < begins + 60.0 for at in tries) <= 1.15 * 60.0 / spacing_of(TTL)


def tries_of(count: int, *, begun_within: float) -> list[float]:
    """When these candidates try in eleven minutes, of which the first leads. The waiters are as the store has them."""
    rng = random.Random(7)
    candidates = [Candidacy(name="reports", holder=str(n), ttl=TTL, rng=random.Random(n)) for n in range(count)]
    events = sorted((rng.uniform(0.0, begun_within), n) for n in range(count))
    until: dict[int, float] = {}
    tries: list[float] = []
    while events[0][0] < begun_within + 600.0:
        now, n = heapq.heappop(events)
        asked = tried(candidates[n], now)
        tries.append(now)
        others = [other for other, end in until.items() if end > now and other != n]
        assert asked.request.waits is not None
        lasts = asked.request.waits.total_seconds()
        if until.get(n, 0.0) < now + lasts / 2:
            until[n] = now + lasts
        answered = LeaseAnswer(
            term=None,
            now=START + timedelta(seconds=now),
            expires_at=START + timedelta(seconds=now + 9.0),
            rank=sum(other < n for other in others),
            waiting=len(others) + 1,
        )
        candidates[n].answered(asked, answered, sent_at=now, now=now)
        due = candidates[n].next_at()
        assert due is not None
        heapq.heappush(events, (due, n))
    return tries


def refused(rank: int) -> Candidacy:
    candidate = make()
    candidate.answered(tried(candidate), answer(left=9, rank=rank, waiting=20), sent_at=0.0, now=0.0)
    return candidate


def test_after_a_hint_the_first_few_try_one_after_the_other() -> None:
    """20 ms from rank to rank; such a try writes nothing, so it does not register a wait."""
    for rank in range(HINTED):
        candidate = refused(rank)
        assert candidate.hint(5.0)
        assert candidate.next_at() == pytest.approx(5.0 + rank * 0.02)
        assert tried(candidate, 5.0 + rank * 0.02).request.waits is None
    last = refused(HINTED)
    due = last.next_at()
    assert not last.hint(5.0)
    assert last.next_at() == due


def test_many_hints_cause_few_tries() -> None:
    """Each write to an SQLite file is a hint; there is a tenth of a second between two tries caused by them."""
    candidate = refused(0)
    candidate.hint(5.0)
    first = tried(candidate, 5.0)
    candidate.answered(first, answer(left=9), sent_at=5.0, now=5.01)
    candidate.hint(5.02)
    candidate.hint(5.03)
    assert candidate.next_at() == pytest.approx(5.1)


def test_a_hint_means_nothing_to_a_leader() -> None:
    """It holds the lease, so the lease was not released."""
    assert not holding().hint(1.0)


# Trust


def test_trust_counts_from_the_send() -> None:
    """A slow answer shortens the trust, and a heartbeat's answer extends it from when it was sent."""
    candidate = holding()
    assert is_held(candidate, TRUST - 0.001)
    assert not is_held(candidate, TRUST)
    (beat,) = candidate.tick(2.0)
    assert isinstance(beat, BeatLease)
    assert candidate.beaten(beat, renewed=True, sent_at=2.0, now=3.5) == []
    assert is_held(candidate, 2.0 + TRUST - 0.001)
    assert not is_held(candidate, 2.0 + TRUST)
    assert candidate.next_at() == pytest.approx(4.0)


def test_a_grant_that_comes_too_late_is_resigned_unused() -> None:
    """The answer to a try can be older than the trust in it."""
    candidate = make()
    asked = tried(candidate)
    grant = Grant(term=Term("reports", 7), acquisition=asked.request.acquisition)
    assert candidate.answered(asked, answer(7), sent_at=0.0, now=TRUST) == [ResignLease(grant)]
    assert candidate.tenure is None
    assert tried(candidate, TRUST + 2).request.acquisition != asked.request.acquisition


def test_a_heartbeat_without_an_answer_is_sent_again_soon() -> None:
    """When the trust ends, the loss is announced."""
    candidate = holding(once=True)
    assert [type(action) for action in candidate.tick(2.0)] == [BeatLease]
    assert candidate.next_at() == pytest.approx(2.0 + 2 / 6)
    assert [type(action) for action in candidate.tick(2.4)] == [BeatLease]
    assert candidate.tick(TRUST) == [LoseLease(Term("reports", 7), UNRENEWED)]
    assert candidate.next_at() is None


def test_an_answer_after_the_end_of_the_trust_changes_nothing() -> None:
    """A paused process finds a good answer waiting, but its trust may have been seen as ended."""
    candidate = holding(once=True)
    (beat,) = candidate.tick(8.0)
    assert isinstance(beat, BeatLease)
    assert candidate.beaten(beat, renewed=True, sent_at=8.0, now=9.0) == [LoseLease(Term("reports", 7), UNRENEWED)]
    assert not is_held(candidate, 9.0)


def test_a_refused_heartbeat_is_a_loss_and_nothing_is_resigned() -> None:
    """The database has said that the lease is not its own."""
    candidate = holding()
    (beat,) = candidate.tick(2.0)
    assert isinstance(beat, BeatLease)
    assert candidate.beaten(beat, renewed=False, sent_at=2.0, now=2.1) == [LoseLease(Term("reports", 7), TAKEN)]
    assert candidate.next_at() == pytest.approx(2.1 + candidate.spacing)


@given(st.lists(st.tuples(st.floats(0.01, 3), st.sampled_from(["renewed", "refused", "silence"]), st.floats(0, 3))))
def test_no_lease_is_trusted_too_long_or_renewed_after_its_loss(steps: list[tuple[float, str, float]]) -> None:
    """Whatever the answers and their times: trust ends in time, and no heartbeat follows an announcement."""
    candidate, now, acknowledged = holding(once=True), 0.1, 0.0
    lost: list[LeaseAction] = []
    for pause, outcome, latency in steps:
        now += pause
        actions = candidate.tick(now)
        assert not (lost and actions)
        lost += [action for action in actions if isinstance(action, LoseLease)]
        for beat in [action for action in actions if isinstance(action, BeatLease)]:
            sent_at, now = now, now + latency
            if outcome != "silence":
                lost += candidate.beaten(beat, renewed=outcome == "renewed", sent_at=sent_at, now=now)
                acknowledged = acknowledged if lost else sent_at
        assert not is_held(candidate, acknowledged + TRUST + 1e-6)
        assert not (lost and is_held(candidate, now))


# The end


@pytest.mark.parametrize(
    ("options", "at", "reason"),
    [({"rotate_after": timedelta(seconds=3)}, 3.1, ROTATED), ({"max_stall": timedelta(seconds=4)}, 4.1, STALLED)],
)
def test_rotation_and_stall_end_a_leadership(options: dict[str, Any], at: float, reason: str) -> None:
    """The holder is notified. It resigns at once, except if a block has to be left first."""
    candidate = holding(**options)
    assert is_held(candidate, at - 0.001)
    assert not is_held(candidate, at)
    candidate.tick(2.0)
    lose, give_back = candidate.tick(at)
    assert lose == LoseLease(Term("reports", 7), reason)
    assert isinstance(give_back, ResignLease)
    assert candidate.next_at() == pytest.approx(at + 10)
    patient = holding(**options, once=True)
    assert patient.tick(at) == [LoseLease(Term("reports", 7), reason)]
    assert [type(action) for action in patient.retire(at + 1)] == [ResignLease]


def test_finished_work_prevents_a_stall() -> None:
    """`max_stall` counts from the last work."""
    candidate = holding(max_stall=timedelta(seconds=4))
    candidate.worked(3.0)
    assert is_held(candidate, 6.9)
    assert not is_held(candidate, 7.0)


def test_a_retired_candidate_resigns_and_tries_no_more() -> None:
    """This includes what a running try wins."""
    candidate = holding()
    lose, give_back = candidate.retire(1.0)
    assert lose == LoseLease(Term("reports", 7), RESIGNED)
    assert isinstance(give_back, ResignLease)
    assert (candidate.next_at(), candidate.tick(100.0), candidate.retire(2.0)) == (None, [], [])
    late = make()
    asked = tried(late)
    assert late.retire(0.1) == []
    assert [type(action) for action in late.answered(asked, answer(8), sent_at=0.0, now=0.2)] == [ResignLease]


def test_a_try_without_an_answer_is_sent_again_with_the_same_acquisition() -> None:
    """So a lease that was won is found, not won twice; a candidate that retires in doubt asks once more."""
    candidate = make()
    first = tried(candidate)
    pause = candidate.unanswered(1.0, in_doubt=True)
    assert candidate.tick(1.0 + pause / 2) == []
    again = tried(candidate, 1.0 + pause)
    assert again.request.acquisition == first.request.acquisition
    assert candidate.settle_doubt() == []
    candidate.retire(2.0)
    (last,) = candidate.settle_doubt()
    assert isinstance(last, TryLease)
    assert (last.request.acquisition, last.request.waits) == (first.request.acquisition, None)
    candidate.answered(last, answer(None), sent_at=2.0, now=2.1)
    assert candidate.settle_doubt() == []


def test_pauses_after_failures_grow() -> None:
    """A database that is away is tried at growing intervals, up to a limit."""
    candidate = make()
    pauses = [candidate.unanswered(0.0, in_doubt=False) for _ in range(8)]
    longest = candidacy.OUTAGE_PAUSES
    assert all(0.5 * most <= pause <= most for pause, most in zip(pauses, longest, strict=False))
    assert max(pauses) <= longest[-1]
