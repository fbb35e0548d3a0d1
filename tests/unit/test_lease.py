"""How long a holder may trust itself: this arithmetic must err on the safe side only."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reltask.model.pace import MARGIN_SHARE, Pace

seconds = st.floats(0.001, 100_000)
sends = st.floats(0, 1e6)
paces = st.builds(
    Pace,
    lock_timeout=seconds,
    heartbeat=seconds,
    beat_timeout=seconds,
    stop_grace=st.floats(0, 1000),
    abandon_after=st.integers(1, 10),
)
lock_timeouts = st.timedeltas(timedelta(milliseconds=10), timedelta(days=30))


@st.composite
def nearly_sound(draw: st.DrawFn) -> Pace:
    """Lengths around the border between those that fit together and those that do not."""
    lock, abandon_after = draw(seconds), draw(st.integers(1, 5))
    return Pace(
        lock_timeout=lock,
        heartbeat=lock / abandon_after * draw(st.floats(0.4, 0.9)),
        beat_timeout=lock * draw(st.floats(0.01, 0.1)),
        stop_grace=lock * draw(st.floats(0, 0.3)),
        abandon_after=abandon_after,
    )


DEFAULT = Pace.of(timedelta(minutes=2))


def test_defaults() -> None:
    """A lock of 2 minutes is renewed every 30 s, abandoned after 3 failures, with 12 s kept for stopping."""
    assert (DEFAULT.lock_timeout, DEFAULT.heartbeat, DEFAULT.beat_timeout, DEFAULT.stop_grace) == (120, 30, 5, 10)
    assert DEFAULT.abandon_after == 3
    assert DEFAULT.margin == 12
    assert DEFAULT.patience == 95
    assert DEFAULT.deadline(1000) == 1108
    assert DEFAULT.abandon_at(1000) == 1095


@given(length=lock_timeouts)
def test_what_follows_from_a_lock_timeout_works(length: timedelta) -> None:
    """For any lock timeout, the derived lengths fit together."""
    assert Pace.of(length).fault() is None


@given(pace=paces, sent=sends)
def test_the_deadline_comes_before_the_lock_ends(pace: Pace, sent: float) -> None:
    """The body is stopped at least a margin before other workers may claim; the margin covers heartbeat and stop."""
    assert pace.margin >= max(MARGIN_SHARE * pace.lock_timeout, pace.beat_timeout, pace.stop_grace)
    assert pace.deadline(sent) == pytest.approx(sent + pace.lock_timeout - pace.margin)
    assert pace.deadline(sent) < sent + pace.lock_timeout


@given(pace=paces, one=sends, other=sends)
def test_an_older_acknowledgement_only_shortens_trust(pace: Pace, one: float, other: float) -> None:
    """After lost answers an older send is the last acknowledged one: deadline and abandonment come no later."""
    older, newer = sorted([one, other])
    assert pace.deadline(older) <= pace.deadline(newer)
    assert pace.abandon_at(older) <= pace.abandon_at(newer)


@given(pace=nearly_sound(), sent=sends)
def test_sound_lengths_abandon_before_the_deadline(pace: Pace, sent: float) -> None:
    """Valid lengths reach the last tolerated failure before the deadline."""
    assume(pace.fault() is None)
    assert pace.abandon_at(sent) <= pace.deadline(sent) + 1e-6


@given(length=lock_timeouts, sent=sends)
def test_failures_are_whole_intervals(length: timedelta, sent: float) -> None:
    """A heartbeat has failed when its interval and its timeout are over; a retry inside does not count."""
    pace = Pace.of(length)
    for count in range(1, pace.abandon_after + 1):
        certain = sent + count * pace.heartbeat + pace.beat_timeout
        assert pace.failures(sent, certain + pace.heartbeat / 100) == count
        assert pace.failures(sent, certain - pace.heartbeat / 100) == count - 1


@given(pace=paces, sent=sends, waited=st.floats(0, 1e6), more=st.floats(0, 1e6))
def test_failures_never_shrink_with_time(pace: Pace, sent: float, waited: float, more: float) -> None:
    """Without a good heartbeat the count only grows, from 0."""
    assert pace.failures(sent, sent) == 0
    assert pace.failures(sent, sent + waited) <= pace.failures(sent, sent + waited + more)


def test_the_last_failure_is_certain_at_abandonment() -> None:
    """At the moment of abandonment the tolerated number of failures has been reached exactly."""
    assert DEFAULT.failures(1000, DEFAULT.abandon_at(1000)) == DEFAULT.abandon_after
    assert DEFAULT.failures(1000, DEFAULT.abandon_at(1000) - 0.001) == DEFAULT.abandon_after - 1


def test_lengths_that_do_not_fit() -> None:
    """Three heartbeats longer than the lock are refused, with the numbers and an alternative."""
    fault = Pace.of(timedelta(minutes=1), heartbeat=timedelta(seconds=30)).fault()
    assert fault is not None
    assert "3 heartbeats of 30s" in fault
    assert "make the lock timeout longer or the heartbeat shorter" in fault


@pytest.mark.parametrize("name", ["lock_timeout", "heartbeat", "beat_timeout"])
def test_nothing_is_not_a_length(name: str) -> None:
    """A length of zero is refused."""
    lengths = {"lock_timeout": 120.0, "heartbeat": 30.0, "beat_timeout": 5.0, "stop_grace": 10.0, name: 0.0}
    fault = Pace(**lengths).fault()  # type: ignore[arg-type] # mypy sees that abandon_after, an int, could be meant
    assert fault is not None
    assert "greater than zero" in fault


def test_what_is_given_is_kept() -> None:
    """Given lengths are not replaced by derived ones."""
    pace = Pace.of(
        timedelta(minutes=10),
        heartbeat=timedelta(seconds=7),
        beat_timeout=timedelta(seconds=3),
        stop_grace=timedelta(0),
        abandon_after=5,
    )
    assert pace == Pace(lock_timeout=600, heartbeat=7, beat_timeout=3, stop_grace=0, abandon_after=5)
