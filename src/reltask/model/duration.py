"""Durations as users write them: `"10s"`, `"5m"`, `"1h30m"`, or a `timedelta`.

A number without a unit is refused everywhere: it could mean seconds or minutes.
"""

from __future__ import annotations

import re
from datetime import timedelta

Duration = str | timedelta
"""What the API accepts as a duration."""

_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)")
_WHOLE = re.compile(rf"\s*(?:{_PART.pattern}\s*)+")
LONGEST = timedelta(days=36_525)
"""A hundred years: the sum of a current date and this duration fits into every database's date type."""


def parse_duration(value: Duration, *, name: str = "duration") -> timedelta:
    """Read a duration, or raise ValueError with what to write instead."""
    if isinstance(value, timedelta):
        length = value
    elif _WHOLE.fullmatch(str(value)):
        length = _length(sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(value)))
    else:
        raise ValueError(f'{name}: {value!r} is not a duration; write "10s", "5m", "2h", "3d" or a timedelta.')
    if length < timedelta(0):
        raise ValueError(f"{name}: {value!r} is negative; write a duration of zero or more.")
    if length > LONGEST:
        raise ValueError(f"{name}: {value!r} is too long; write at most {LONGEST.days}d, which is a hundred years.")
    return length


def _length(microseconds: float) -> timedelta:
    try:
        return timedelta(microseconds=microseconds)
    except OverflowError:
        return timedelta.max


def format_duration(length: timedelta) -> str:
    """The shortest text that `parse_duration` reads back as the same length."""
    rest = length // timedelta(microseconds=1)
    if rest == 0:
        return "0s"
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, rest = divmod(rest, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
