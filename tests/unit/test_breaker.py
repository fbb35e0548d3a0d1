"""The pure decisions of retry and breaker. They take `now`, and are called in any order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from reltask.resilience import Breaker, Permit, Retries

# How long to wait


@given(st.integers(0, 2**32), st.integers(0, 10), st.floats(0.001, 100))
def test_each_wait_doubles_and_jitter_only_lengthens_it(seed: int, attempts: int, first: float) -> None:
    """The nth wait is between first x 2^(n-1) and 1.5 times that, so waits grow; there is none after the last."""
    retries = Retries(rng=random.Random(seed), attempts=attempts, first=first)
    waits = [retries.delay(failures) for failures in range(1, attempts + 1)]
    assert all(wait is not None and first * 2**n <= wait < 1.5001 * first * 2**n for n, wait in enumerate(waits)), waits
    assert waits == sorted(wait for wait in waits if wait is not None)
    assert retries.delay(attempts + 1) is None


def test_jitter_spreads_workers_that_failed_together() -> None:
    """Two hundred workers with the same failure do not retry at the same time."""
    waits = sorted(Retries(rng=random.Random(seed)).delay(1) or 0.0 for seed in range(200))
    assert waits[-1] - waits[0] > 0.4
    assert len(set(waits)) == 200


# When the breaker opens


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 6))
def test_opens_at_n_failures_in_a_row_and_not_before(answers: list[bool], limit: int) -> None:
    """Any answer resets the count; only consecutive failures open the breaker."""
    breaker = Breaker(failures=limit)
    in_a_row = 0
    for now, answered in enumerate(answers):
        permit = breaker.admit(float(now))
        assert permit is not None
        if answered:
            breaker.answered(permit)
        else:
            breaker.failed(permit, float(now))
        in_a_row = 0 if answered else in_a_row + 1
        assert (breaker.state == "open") == (in_a_row == limit)
        if breaker.state == "open":
            return


# Late results


def hand_back(breaker: Breaker, permit: Permit, news: str, now: float) -> None:
    if news == "failed":
        breaker.failed(permit, now)
    elif news == "answered":
        breaker.answered(permit)
    else:
        breaker.abandoned(permit)


def open_breaker() -> tuple[Breaker, Permit]:
    """A breaker that opened at time 0 while one more statement was under way."""
    breaker = Breaker(failures=1)
    early, opening = breaker.admit(0.0), breaker.admit(0.0)
    assert early is not None
    assert opening is not None
    breaker.failed(opening, 0.0)
    return breaker, early


def test_a_late_success_does_not_close_an_open_breaker() -> None:
    """A statement sent before the breaker opened says nothing about the database now."""
    breaker, early = open_breaker()
    breaker.answered(early)
    assert breaker.state == "open"
    assert breaker.admit(29.0) is None


@pytest.mark.parametrize("news", ["answered", "failed", "abandoned"])
def test_late_results_neither_end_a_probe_nor_allow_a_second_one(news: str) -> None:
    """While a probe is under way, only its own result counts."""
    breaker, early = open_breaker()
    probe = breaker.admit(30.0)
    assert probe is not None
    hand_back(breaker, early, news, 31.0)
    assert breaker.state == "half-open"
    assert breaker.admit(31.0) is None


# Everything together


class BreakerMachine(RuleBasedStateMachine):
    """Any order of events: permits requested, and returned in any order and at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(failures=3, reset=10.0)
        self.now = 0.0
        self.opened_at = 0.0
        self.permits: list[Permit] = []
        self.probe: Permit | None = None

    @rule(seconds=st.sampled_from([0.0, 0.5, 4.0, 9.9, 10.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def ask(self) -> None:
        before = self.breaker.state
        permit = self.breaker.admit(self.now)
        ready = before == "half-open" or (before == "open" and self.now >= self.opened_at + 10.0)
        if before == "closed":
            assert permit is not None
        else:
            assert (permit is not None) == (ready and self.probe is None), "one probe, after the reset time"
        if permit is not None and before == "closed":
            self.permits.append(permit)
        elif permit is not None:
            self.probe = permit

    @precondition(lambda self: self.probe is not None)
    @rule(news=st.sampled_from(["answered", "failed", "abandoned"]))
    def probe_ends(self, news: str) -> None:
        assert self.probe is not None
        self.hand_back(self.probe, news)
        self.probe = None
        assert self.breaker.state == {"answered": "closed", "failed": "open", "abandoned": "half-open"}[news]

    @precondition(lambda self: self.permits)
    @rule(news=st.sampled_from(["answered", "failed", "abandoned"]), which=st.integers(0, 100))
    def other_ends(self, news: str, which: int) -> None:
        before = self.breaker.state
        self.hand_back(self.permits.pop(which % len(self.permits)), news)
        if before != "closed":
            assert self.breaker.state == before, "only a probe moves a breaker that is not closed"

    def hand_back(self, permit: Permit, news: str) -> None:
        before = self.breaker.state
        hand_back(self.breaker, permit, news, self.now)
        if before != "open" and self.breaker.state == "open":
            self.opened_at = self.now

    @invariant()
    def a_probe_means_half_open(self) -> None:
        assert self.probe is None or self.breaker.state == "half-open"


TestBreakerMachine = BreakerMachine.TestCase
