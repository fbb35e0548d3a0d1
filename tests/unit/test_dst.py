"""Cron on the days when clocks change: a golden table, and a slow implementation of the same rule.

The changes of 2025, in UTC:

    Europe/Berlin          30 Mar 01:00  02:00 → 03:00      26 Oct 01:00  03:00 → 02:00
    America/New_York        9 Mar 07:00  02:00 → 03:00       2 Nov 06:00  02:00 → 01:00
    Australia/Lord_Howe     4 Oct 15:30  02:00 → 02:30       5 Apr 15:00  02:00 → 01:30
    America/Santiago        7 Sep 04:00  00:00 → 01:00       6 Apr 03:00  00:00 → 23:00
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reltask.model.cron import nearest
from reltask.model.schedule import Cron, Every, next_slot

BERLIN, NEW_YORK, LORD_HOWE, SANTIAGO = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago"


class Day(NamedTuple):
    """What an expression does between two instants, the first excluded; all times UTC, in 2025."""

    zone: str
    expression: str
    after: str
    until: str
    expected: str


GOLDEN = [
    # Berlin, forward. UTC+1 until 30 Mar 01:00, then UTC+2.
    Day(BERLIN, "30 2 * * *", "03-28 12:00", "03-31 12:00", "03-29 01:30, 03-30 01:00, 03-31 00:30"),
    Day(BERLIN, "0 2 * * *", "03-28 12:00", "03-31 12:00", "03-29 01:00, 03-30 01:00, 03-31 00:00"),
    Day(BERLIN, "0 3 * * *", "03-28 12:00", "03-31 12:00", "03-29 02:00, 03-30 01:00, 03-31 01:00"),
    Day(BERLIN, "0 2,3 * * *", "03-29 12:00", "03-31 12:00", "03-30 01:00, 03-31 00:00, 03-31 01:00"),
    Day(BERLIN, "0 30 2 * * *", "03-28 12:00", "03-31 12:00", "03-29 01:30, 03-30 01:00, 03-31 00:30"),
    Day(BERLIN, "*/30 2 * * *", "03-29 12:00", "03-31 12:00", "03-30 01:00, 03-31 00:00, 03-31 00:30"),
    Day(BERLIN, "0 */2 * * *", "03-29 22:00", "03-30 03:00", "03-29 23:00, 03-30 01:00, 03-30 02:00"),
    Day(BERLIN, "0 * * * *", "03-29 23:00", "03-30 03:00", "03-30 00:00, 03-30 01:00, 03-30 02:00, 03-30 03:00"),
    Day(BERLIN, "30 * * * *", "03-29 23:00", "03-30 02:00", "03-29 23:30, 03-30 00:30, 03-30 01:30"),
    Day(BERLIN, "*/20 * * * *", "03-30 00:20", "03-30 01:20", "03-30 00:40, 03-30 01:00, 03-30 01:20"),
    Day(BERLIN, "30 2 30 3 *", "03-01 00:00", "04-30 00:00", "03-30 01:00"),
    Day(BERLIN, "30 2 * * sun", "03-20 00:00", "04-07 00:00", "03-23 01:30, 03-30 01:00, 04-06 00:30"),
    # Berlin, back. UTC+2 until 26 Oct 01:00, then UTC+1.
    Day(BERLIN, "30 2 * * *", "10-24 12:00", "10-27 12:00", "10-25 00:30, 10-26 00:30, 10-27 01:30"),
    Day(BERLIN, "0 3 * * *", "10-24 12:00", "10-27 12:00", "10-25 01:00, 10-26 02:00, 10-27 02:00"),
    Day(BERLIN, "0 30 2 * * *", "10-24 12:00", "10-27 12:00", "10-25 00:30, 10-26 00:30, 10-27 01:30"),
    Day(BERLIN, "*/30 2 * * *", "10-25 12:00", "10-27 01:00", "10-26 00:00, 10-26 00:30, 10-27 01:00"),
    Day(BERLIN, "50 2 * * *", "10-26 01:45", "10-27 12:00", "10-27 01:50"),  # asked in the second pass
    Day(BERLIN, "15 */2 * * *", "10-25 22:00", "10-26 04:00", "10-25 22:15, 10-26 00:15, 10-26 03:15"),
    Day(BERLIN, "0 * * * *", "10-25 23:00", "10-26 02:00", "10-26 00:00, 10-26 01:00, 10-26 02:00"),
    Day(BERLIN, "*/30 0-6 * * *", "10-26 00:00", "10-26 02:00", "10-26 00:30, 10-26 01:00, 10-26 01:30, 10-26 02:00"),
    # New York, forward. UTC-5 until 9 Mar 07:00, then UTC-4.
    Day(NEW_YORK, "30 2 * * *", "03-07 12:00", "03-10 12:00", "03-08 07:30, 03-09 07:00, 03-10 06:30"),
    Day(NEW_YORK, "0 9 * * mon-fri", "03-07 00:00", "03-11 00:00", "03-07 14:00, 03-10 13:00"),
    Day(NEW_YORK, "15,45 2 * * *", "03-08 12:00", "03-10 12:00", "03-09 07:00, 03-10 06:15, 03-10 06:45"),
    Day(NEW_YORK, "30 * * * *", "03-09 06:00", "03-09 08:00", "03-09 06:30, 03-09 07:30"),
    # New York, back. UTC-4 until 2 Nov 06:00, then UTC-5; the hour from 01:00 comes twice.
    Day(NEW_YORK, "30 1 * * *", "10-31 12:00", "11-03 12:00", "11-01 05:30, 11-02 05:30, 11-03 06:30"),
    Day(NEW_YORK, "0 2 * * *", "10-31 12:00", "11-03 12:00", "11-01 06:00, 11-02 07:00, 11-03 07:00"),
    Day(NEW_YORK, "30 0-1 * * *", "11-01 12:00", "11-02 12:00", "11-02 04:30, 11-02 05:30"),
    Day(NEW_YORK, "30 * * * *", "11-02 05:00", "11-02 08:00", "11-02 05:30, 11-02 06:30, 11-02 07:30"),
    # Lord Howe, forward by half an hour. UTC+10:30 until 4 Oct 15:30, then UTC+11.
    Day(LORD_HOWE, "15 2 * * *", "10-03 00:00", "10-06 00:00", "10-03 15:45, 10-04 15:30, 10-05 15:15"),
    Day(LORD_HOWE, "45 2 * * *", "10-03 00:00", "10-06 00:00", "10-03 16:15, 10-04 15:45, 10-05 15:45"),
    Day(LORD_HOWE, "30 2 * * *", "10-03 00:00", "10-06 00:00", "10-03 16:00, 10-04 15:30, 10-05 15:30"),
    Day(LORD_HOWE, "*/15 * * * *", "10-04 15:00", "10-04 16:00", "10-04 15:15, 10-04 15:30, 10-04 15:45, 10-04 16:00"),
    # An hourly schedule at the full hour has no 02:00 that night: 01:00, then 03:00, an hour and a
    # half later.
    Day(LORD_HOWE, "0 * * * *", "10-04 14:00", "10-04 17:00", "10-04 14:30, 10-04 16:00, 10-04 17:00"),
    # Lord Howe, back. UTC+11 until 5 Apr 15:00, then UTC+10:30; 01:30 to 02:00 comes twice.
    Day(LORD_HOWE, "45 1 * * *", "04-04 00:00", "04-07 00:00", "04-04 14:45, 04-05 14:45, 04-06 15:15"),
    Day(LORD_HOWE, "15 1 * * *", "04-04 00:00", "04-07 00:00", "04-04 14:15, 04-05 14:15, 04-06 14:45"),
    Day(LORD_HOWE, "0 2 * * *", "04-04 00:00", "04-07 00:00", "04-04 15:00, 04-05 15:30, 04-06 15:30"),
    Day(LORD_HOWE, "*/15 * * * *", "04-05 14:30", "04-05 15:30", "04-05 14:45, 04-05 15:00, 04-05 15:15, 04-05 15:30"),
    # Santiago, forward at midnight. UTC-4 until 7 Sep 04:00, then UTC-3; Sunday begins at 01:00.
    Day(SANTIAGO, "0 0 * * *", "09-05 12:00", "09-08 12:00", "09-06 04:00, 09-07 04:00, 09-08 03:00"),
    Day(SANTIAGO, "30 0 * * sun", "09-01 00:00", "09-15 00:00", "09-07 04:00, 09-14 03:30"),
    Day(SANTIAGO, "0 0 7 9 *", "09-01 00:00", "12-31 00:00", "09-07 04:00"),
    Day(SANTIAGO, "0 * * * *", "09-07 02:00", "09-07 05:00", "09-07 03:00, 09-07 04:00, 09-07 05:00"),
    # Santiago, back at midnight. UTC-3 until 6 Apr 03:00, then UTC-4; the last hour of Saturday comes twice.
    Day(SANTIAGO, "30 23 * * *", "04-04 12:00", "04-07 12:00", "04-05 02:30, 04-06 02:30, 04-07 03:30"),
    Day(SANTIAGO, "0 0 * * *", "04-04 12:00", "04-07 12:00", "04-05 03:00, 04-06 04:00, 04-07 04:00"),
    Day(SANTIAGO, "30 * * * sat", "04-06 01:00", "04-06 12:00", "04-06 01:30, 04-06 02:30, 04-06 03:30"),
]


def instant(text: str) -> datetime:
    return datetime.strptime(f"2025-{text}", "%Y-%m-%d %H:%M").replace(tzinfo=UTC)


def forward(expression: str, zone: str, after: datetime, until: datetime) -> list[datetime]:
    points, point = [], nearest(expression, zone, after, forward=True)
    while point <= until:
        points.append(point)
        point = nearest(expression, zone, point, forward=True)
    return points


def backward(expression: str, zone: str, after: datetime, until: datetime) -> list[datetime]:
    points, point = [], nearest(expression, zone, until + timedelta(microseconds=1), forward=False)
    while point > after:
        points.append(point)
        point = nearest(expression, zone, point, forward=False)
    return points[::-1]


@pytest.mark.parametrize("day", GOLDEN, ids=lambda day: f"{day.zone} {day.expression} {day.after[:5]}")
def test_golden_days(day: Day) -> None:
    """A wall time that does not exist runs once at the jump, one that exists twice runs once, an interval goes on."""
    after, until = instant(day.after), instant(day.until)
    expected = [instant(text) for text in day.expected.split(", ")]
    assert forward(day.expression, day.zone, after, until) == expected
    assert backward(day.expression, day.zone, after, until) == expected


def test_slots_are_kept_in_utc() -> None:
    """A slot is stored as an instant in UTC, whatever the schedule's zone."""
    start = instant("10-25 12:00")
    slot = next_slot(Cron("30 2 * * *", BERLIN), nominal=start, started=start, finished=start)
    assert slot.at.tzinfo is UTC


def test_aligned_intervals_ignore_clock_changes() -> None:
    """Aligned times of `every` count real time: an hour stays an hour."""
    every, slot = Every(timedelta(hours=1), align=True), instant("10-25 20:00")
    for _ in range(12):
        following = next_slot(every, nominal=slot, started=slot, finished=slot).at
        assert following - slot == timedelta(hours=1)
        slot = following


def read_slowly(minutes: set[int], hours: set[int], zone: ZoneInfo, after: datetime, until: datetime) -> list[datetime]:
    """The same rule, minute by minute: what is shown, was shown before, was left out."""

    def wall(moment: datetime) -> datetime:
        return moment.astimezone(zone).replace(tzinfo=None)

    def rhythm(hour: int) -> bool:
        touched = {1, 2} if zone.key == "Antarctica/Troll" else {hour}
        return all(beside % 24 in hours for hour in touched for beside in (hour - 1, hour, hour + 1))

    def matches(shown: datetime) -> bool:
        return shown.minute in minutes and shown.hour in hours

    minute, points, highest = timedelta(minutes=1), [], wall(after)
    moment = after + minute
    while moment <= until:
        shown = wall(moment)
        left_out = [highest + n * minute for n in range(1, (shown - highest) // minute)]
        jumped_over = any(matches(time) and not rhythm(time.hour) for time in left_out)
        repeated = shown <= highest
        if jumped_over or (matches(shown) and (not repeated or rhythm(shown.hour))):
            points.append(moment)
        highest = max(highest, shown)
        moment += minute
    return points


CHANGES = [
    (BERLIN, "03-30 01:00"),
    (BERLIN, "10-26 01:00"),
    (NEW_YORK, "03-09 07:00"),
    (NEW_YORK, "11-02 06:00"),
    (LORD_HOWE, "10-04 15:30"),
    (LORD_HOWE, "04-05 15:00"),
    (SANTIAGO, "09-07 04:00"),
    (SANTIAGO, "04-06 03:00"),
    ("Antarctica/Troll", "03-30 01:00"),  # 01:00 → 03:00: two hours at once
    ("Antarctica/Troll", "10-26 01:00"),
]


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    change=st.sampled_from(CHANGES),
    minutes=st.sets(st.integers(0, 59), min_size=1, max_size=5),
    hours=st.one_of(st.just(set(range(24))), st.sets(st.sampled_from([22, 23, 0, 1, 2, 3, 4]), min_size=1)),
)
def test_agrees_with_the_slow_implementation(change: tuple[str, str], minutes: set[int], hours: set[int]) -> None:
    """Around every kind of change the search, forward and backward, finds what checking each minute finds."""
    zone, turn = change
    expression = f"{','.join(map(str, minutes))} {','.join(map(str, hours))} * * *"
    after, until = instant(turn) - timedelta(hours=5), instant(turn) + timedelta(hours=5)
    expected = read_slowly(minutes, hours, ZoneInfo(zone), after, until)
    assert forward(expression, zone, after, until) == expected
    assert backward(expression, zone, after, until) == expected


@settings(deadline=None)
@given(
    change=st.sampled_from(CHANGES),
    expression=st.sampled_from(["30 2 * * *", "*/20 * * * *", "0 */2 * * *", "*/30 0-3 * * *", "*/10 * * * * *"]),
    offset=st.timedeltas(timedelta(hours=-4), timedelta(hours=4)),
)
def test_any_moment_is_between_its_neighbours(change: tuple[str, str], expression: str, offset: timedelta) -> None:
    """From any moment near a change, the times before and after enclose it, with none between."""
    zone, turn = change
    moment = instant(turn) + offset
    before = nearest(expression, zone, moment, forward=False)
    after = nearest(expression, zone, moment, forward=True)
    assert before < moment < after
    assert nearest(expression, zone, before, forward=True) in {moment, after}
    assert nearest(expression, zone, after, forward=False) in {moment, before}
