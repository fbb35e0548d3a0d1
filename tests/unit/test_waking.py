"""When an idle worker looks: turns, draws, alarms, held rows, and the leader's watch."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from reltask.model.job import ClaimAnswer, Fleet, Overdue
from reltask.worker.waking import ANSWERS, LONGEST, TURN, URGENT, WATCH_AGAIN, Waking, Watch

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
sizes = st.integers(1, 2000)
moments = st.floats(0, 1e6)


def waking(seed: int = 0, *, signals: bool = True, fleet: Fleet | None = None, poll: float = 60.0) -> Waking:
    """A worker that has looked once."""
    one = Waking(poll=poll, lock_timeout=120.0, heartbeat=30.0, rng=random.Random(seed))
    one.signals = signals
    look(one, 0.0, fleet=fleet or Fleet())
    return one


def look(
    one: Waking, now: float, *, due: float | None = None, expiry: float | None = None, fleet: Fleet | None = None
) -> None:
    """A look that finds nothing; times are seconds from now."""

    def moment(seconds: float | None) -> datetime | None:
        return None if seconds is None else NOON + timedelta(seconds=now + seconds)

    answer = ClaimAnswer(
        claims=[],
        now=NOON + timedelta(seconds=now),
        next_due=moment(due),
        next_expiry=moment(expiry),
        fleet=fleet,
    )
    one.decide(now, free=True)
    one.begin()
    one.answered(answer, filled=False, sent_at=now, now=now)
    one.reclaimed(now, all_of_them=True) if expiry is None else None
    one.ended(0, now)


@given(size=sizes, moment=moments, signals=st.booleans())
def test_each_turn_belongs_to_one_rank(size: int, moment: float, signals: bool) -> None:
    """Any two neighbours' turns are one step apart, and each has one turn in a round, soon after any moment."""
    period = size * TURN if signals else min(size * TURN, LONGEST)
    ranks = {0, size // 2, size - 1}
    turns = {
        rank: waking(signals=signals, fleet=Fleet(rank, size)).turn_after(moment) - moment for rank in sorted(ranks)
    }
    for rank, turn in turns.items():
        assert 0 < turn <= period + 1e-6
        apart = (turn - turns[0] - rank * period / size) % period
        assert min(apart, period - apart) < 1e-3


@given(seed=st.integers(0, 10**6), size=sizes, rank=st.integers(0, 1999), seconds=st.floats(0, 30))
def test_nothing_heard_is_forgotten(seed: int, size: int, rank: int, seconds: float) -> None:
    """After a signal, for now or for later, a worker looks within one round of that time, drawn or not."""
    one = waking(seed, fleet=Fleet(rank % size, size))
    at = 1.0
    if not one.signalled(at, seconds=seconds):
        for _ in range(5):
            at = one.next_at(free=True)
            if one.decide(at, free=True).look:
                break
        else:
            raise AssertionError("it never looked")
    assert at <= 1.0 + seconds + size * TURN + 0.5


@given(seed=st.integers(0, 10**6), size=sizes, seconds=st.floats(0.1, 50))
def test_a_due_time_and_the_end_of_a_lock_are_not_forgotten(seed: int, size: int, seconds: float) -> None:
    """A worker that learned of one looks within one round of it."""
    for what in ("due", "expiry"):
        one = waking(seed, fleet=Fleet(size // 2, size))
        look(one, 1.0, due=seconds if what == "due" else None, expiry=seconds if what == "expiry" else None)
        at = 1.0
        for _ in range(5):
            at = one.next_at(free=True)
            if one.decide(at, free=True).look:
                break
        assert at <= 1.0 + seconds + size * TURN + 0.5


def test_about_four_of_many_answer() -> None:
    """Whatever their number; all of them, if they are four or fewer."""
    for size in (1, 4, 10, 100, 1000):
        rounds = max(1, 20_000 // size)
        fleets = ([waking(nth * size + rank, fleet=Fleet(rank, size)) for rank in range(size)] for nth in range(rounds))
        mean = sum(one.signalled(1.0) for fleet in fleets for one in fleet) / rounds
        assert abs(mean - min(size, ANSWERS)) < 0.5


def test_the_last_winner_answers_until_another_one_is_faster() -> None:
    """Its places are warm, and the others need not look."""
    one = waking(fleet=Fleet(0, 10**6))
    won = ClaimAnswer(claims=[object()], now=NOON, next_due=None, next_expiry=None)  # type: ignore[list-item]
    one.begin()
    one.answered(won, filled=False, sent_at=1.0, now=1.0)
    one.ended(1, 1.0)
    assert all(one.signalled(2.0) for _ in range(50))
    look(one, 2.0)
    assert not any(one.signalled(3.0) for _ in range(50))


@given(seed=st.integers(0, 10**6), size=st.integers(1, 200))
def test_a_held_row_costs_the_fleet_one_look_per_second(seed: int, size: int) -> None:
    """A worker looks again soon or not, and then ever more rarely: in the end n send about one look per second."""
    one = waking(seed, fleet=Fleet(0, size))
    now, gaps = 1.0, []
    for _ in range(40):
        look(one, now, due=-5.0)
        gaps.append(one.next_at(free=True) - now)
        now += gaps[-1]
    assert gaps[0] <= 0.15 or gaps[0] >= min(0.7 * size, 0.5 * one.round)
    assert gaps[0] <= 0.15 or size > ANSWERS
    assert all(gap >= min(0.7 * size, 0.5 * one.round) for gap in gaps[-10:])


def test_about_four_of_many_look_again_soon_at_a_held_row() -> None:
    """Mostly it is held for the moment of another worker's claim: the others need not look again for that."""
    size, soon = 400, 0
    for seed in range(size):
        one = waking(seed, fleet=Fleet(0, size))
        look(one, 1.0, due=-5.0)
        soon += one.next_at(free=True) - 1.0 <= 0.15
    assert 1 <= soon <= 4 * ANSWERS


def test_a_signal_that_asks_for_some_plans_no_turn_of_the_others() -> None:
    """Of the watch, or of a burst that spreads: those that are not drawn go on sleeping."""
    one = waking(fleet=Fleet(0, 100))
    planned = one.next_at(free=True)
    assert not any(one.signalled(1.0, wanted=0) for _ in range(50))
    assert one.next_at(free=True) == planned


@given(size=sizes, signals=st.booleans(), poll=st.floats(1, 3600))
def test_a_worker_looks_before_its_sign_of_life_lapses(size: int, signals: bool, poll: float) -> None:
    """Also just after it has learned that it may look more rarely."""
    one = waking(signals=signals, poll=poll)
    promise = one.alive_for
    look(one, 1.0, fleet=Fleet(0, size))
    assert one.next_at(free=True) < promise
    assert one.next_at(free=True) <= 1.0 + max(1.5 * one.round if signals else one.round, 1.0)


def test_a_look_without_a_claim_is_not_repeated_at_once() -> None:
    """The queues have limits of their own and are full: a body may run for hours."""
    one = waking()
    one.begin()
    one.reclaimed(1000.0, all_of_them=True)
    one.ended(0, 1000.0)
    assert one.next_at(free=True) == 1060.0


def test_a_fleet_that_has_shrunk_is_no_reason_to_look_at_once() -> None:
    """A worker has promised to live for long, and would promise less now: it looks at its poll."""
    one = waking(fleet=Fleet(0, 1000))
    look(one, 200.0, fleet=Fleet(0, 1))
    now = 200.0
    for _ in range(20):  # a poll apart; a promise for 1 000 workers lasts for 1 005 s
        assert now < one.next_at(free=True) <= now + 60.0
        now = one.next_at(free=True)
        look(one, now)


def test_a_full_worker_looks_when_it_has_room() -> None:
    """A signal while all places are taken is not forgotten."""
    one = waking(fleet=Fleet(0, 1))
    assert one.signalled(1.0)
    one.call()
    assert not one.decide(1.0, free=False).look
    assert one.more
    assert one.next_at(free=False) < inf


def test_the_watch_asks_urgently_and_then_rarely() -> None:
    """What stays overdue cannot be taken by anyone: it must not keep the fleet awake. Anything new is urgent again."""
    watch = Watch()
    stuck = Overdue(lanes=1, oldest=NOON, newest=NOON, marked=False, expired=False)
    asked = [watch.seen(stuck) for _ in range(40)]
    assert asked[:URGENT] == [ANSWERS * 2**nth for nth in range(URGENT)]
    assert sum(asked[URGENT:]) <= ANSWERS * (40 / WATCH_AGAIN)
    assert watch.seen(Overdue(lanes=2, oldest=NOON, newest=NOON, marked=False, expired=False)) == ANSWERS
    assert watch.seen(Overdue(lanes=0, oldest=None, newest=None, marked=False, expired=False)) == 0
    assert watch.seen(stuck) == ANSWERS
