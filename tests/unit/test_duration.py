"""Durations as people write them."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reltask.model.duration import format_duration, parse_duration

lengths = st.timedeltas(timedelta(0), timedelta(days=36_525))


@given(length=lengths)
def test_round_trip(length: timedelta) -> None:
    """What is written is read back as the same length, to the microsecond, up to a hundred years."""
    assert parse_duration(format_duration(length)) == length


@given(length=lengths)
def test_timedeltas_pass_unchanged(length: timedelta) -> None:
    """A timedelta is accepted as it is."""
    assert parse_duration(length) is length


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("10s", timedelta(seconds=10)),
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("3d", timedelta(days=3)),
        ("250ms", timedelta(milliseconds=250)),
        ("7us", timedelta(microseconds=7)),
        ("1h30m", timedelta(minutes=90)),
        (" 1 h 30 m ", timedelta(minutes=90)),
        ("1.5h", timedelta(minutes=90)),
        ("0.1s", timedelta(milliseconds=100)),
        ("0s", timedelta(0)),
    ],
)
def test_what_people_write(text: str, length: timedelta) -> None:
    """Each unit, and several of them together."""
    assert parse_duration(text) == length


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(minutes=10), "10m"),
        (timedelta(minutes=90), "1h30m"),
        (timedelta(days=1, seconds=1), "1d1s"),
        (timedelta(milliseconds=1500), "1s500ms"),
        (timedelta(microseconds=1), "1us"),
    ],
)
def test_shortest_text(length: timedelta, text: str) -> None:
    """The text has no zero parts."""
    assert format_duration(length) == text


@pytest.mark.parametrize(
    "value",
    [10, 10.5, None, True, "", " ", "10", "s", "10x", "10 seconds", "-5s", "5s-", "1e3s", "10s;", "nan s"],
)
def test_everything_else_is_refused(value: Any) -> None:
    """A bare number above all: its unit is unclear. The error says what to write."""
    with pytest.raises(ValueError, match=r'poll: .* is not a duration; write "10s"'):
        parse_duration(value, name="poll")


def test_negative_lengths_are_refused() -> None:
    """A duration is not negative."""
    with pytest.raises(ValueError, match=r"poll: .* is negative"):
        parse_duration(timedelta(seconds=-1), name="poll")


@given(text=st.text(alphabet="0123456789.smhdu \n", max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Any text gives a length, or one of two errors: no duration, or too long."""
    with suppress(ValueError, OverflowError):
        assert parse_duration(text) >= timedelta(0)


@pytest.mark.parametrize("value", ["36526d", "999999999999999d", timedelta.max])
def test_nothing_lasts_longer_than_a_hundred_years(value: str | timedelta) -> None:
    """A time that far away could not be read back from every database."""
    with pytest.raises(ValueError, match="write at most 36525d"):
        parse_duration(value)
