"""Waits between attempts: bounded, spread, growing, and repeatable from a seed."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from random import Random
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reltask.errors import DeclarationError
from reltask.model.backoff import Backoff, one_off, parse_backoff, recurring

NOTHING, SECOND, HOUR = timedelta(0), timedelta(seconds=1), timedelta(hours=1)

attempts = st.one_of(st.integers(-1, 40), st.sampled_from([10**9, 10**400]))
lengths = st.timedeltas(NOTHING, timedelta(days=36_525))


@st.composite
def backoffs(draw: st.DrawFn) -> Backoff:
    first, cap = sorted([draw(lengths), draw(lengths)])
    return Backoff(
        first=first,
        cap=cap,
        factor=draw(st.floats(1, 1e6)),
        jitter=draw(st.floats(0, 1)),
        at_once=draw(st.booleans()),
    )


@settings(deadline=None)
@given(backoff=backoffs(), attempt=attempts, seed=st.integers())
def test_within_bounds(backoff: Backoff, attempt: int, seed: int) -> None:
    """A wait is never negative and never above the cap, even after 10⁹ attempts."""
    assert NOTHING <= backoff.delay(attempt, rng=Random(seed)) <= backoff.cap


class Highest(Random):
    """Always the upper end, where rounding could exceed it."""

    def uniform(self, _a: float, b: float) -> float:
        return b


def test_rounding_stays_below_the_cap() -> None:
    """The longest possible wait is the cap, not a microsecond more: with these numbers rounding would add one."""
    cap = timedelta(days=32744, seconds=70143, microseconds=343852)
    assert Backoff(cap=cap, jitter=0.24812020413246993).delay(10**9, rng=Highest()) == cap


@settings(deadline=None)
@given(backoff=backoffs(), attempt=attempts, seed=st.integers())
def test_repeatable(backoff: Backoff, attempt: int, seed: int) -> None:
    """The same seed gives the same wait."""
    assert backoff.delay(attempt, rng=Random(seed)) == backoff.delay(attempt, rng=Random(seed))


def typical(backoff: Backoff, attempt: int) -> float:
    rng = Random(7)
    return median(backoff.delay(attempt, rng=rng).total_seconds() for _ in range(501))


def test_grows_until_the_cap() -> None:
    """The typical wait of a one-off doubles from 5 s, then stays below the hour."""
    waits = [typical(one_off(), attempt) for attempt in range(1, 20)]
    growing = [wait for wait in waits if wait < 2000]
    assert len(growing) == 9
    assert waits[0] == pytest.approx(5, rel=0.05)
    for shorter, longer in pairwise(growing):
        assert longer == pytest.approx(2 * shorter, rel=0.05)
    assert waits[-1] == pytest.approx(3600 / 1.25, rel=0.05)


def test_spread_at_the_cap() -> None:
    """Jobs that failed together are not retried together, however often they have failed."""
    rng = Random(7)
    waits = [one_off().delay(1000, rng=rng) for _ in range(200)]
    assert len(set(waits)) == 200
    assert min(waits) < timedelta(minutes=40)
    assert timedelta(minutes=55) < max(waits) <= HOUR


def test_recurring_retries_at_once_first() -> None:
    """A recurring job is tried again at once, then after about 1 s, 2 s, 4 s, at most 10 minutes."""
    backoff = recurring(HOUR)
    assert backoff.delay(1, rng=Random(1)) == NOTHING
    assert [round(typical(backoff, attempt)) for attempt in (2, 3, 4)] == [1, 2, 4]
    assert backoff.cap == timedelta(minutes=10)


@given(interval=st.timedeltas(timedelta(microseconds=1), HOUR), attempt=attempts, seed=st.integers())
def test_recurring_never_waits_beyond_its_interval(interval: timedelta, attempt: int, seed: int) -> None:
    """A retry is never later than the next slot would be."""
    assert recurring(interval).delay(attempt, rng=Random(seed)) <= interval


def test_recurring_without_an_interval() -> None:
    """A cron schedule has no interval: its retries are capped at 10 minutes."""
    assert recurring().cap == timedelta(minutes=10)


@given(attempt=attempts, wait=lengths, seed=st.integers())
def test_a_duration_is_a_constant_wait(attempt: int, wait: timedelta, seed: int) -> None:
    """`backoff="30s"` means 30 s, each time, exactly."""
    backoff = parse_backoff(wait)
    assert backoff is not None
    assert backoff.delay(attempt, rng=Random(seed)) == wait


def test_what_the_decorator_accepts() -> None:
    """A text or timedelta, a Backoff as it is, or nothing."""
    own = Backoff(first=SECOND, factor=3)
    assert parse_backoff(own) is own
    assert parse_backoff(None) is None
    assert parse_backoff("30s") == Backoff(first=30 * SECOND, cap=30 * SECOND, factor=1, jitter=0)


@pytest.mark.parametrize("value", [30, "30", "soon", timedelta(seconds=-1), "9" * 400 + "d"])
def test_not_a_backoff(value: Any) -> None:
    """A bare number is refused, and so is anything that is not a duration."""
    with pytest.raises(DeclarationError, match="Backoff"):
        parse_backoff(value)


@pytest.mark.parametrize(
    "options",
    [
        {"first": -SECOND},
        {"first": 2 * SECOND, "cap": SECOND},
        {"factor": 0.5},
        {"factor": float("inf")},
        {"factor": float("nan")},
        {"jitter": -0.1},
        {"jitter": 1.1},
    ],
)
def test_impossible_backoffs(options: dict[str, Any]) -> None:
    """Values that could make a wait negative, endless or shrinking are refused at the declaration."""
    with pytest.raises(DeclarationError, match="backoff"):
        Backoff(**options)
