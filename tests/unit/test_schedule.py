"""When a job runs next: rules for any schedule and any clock, then frequent examples."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reltask.errors import DeclarationError
from reltask.model.schedule import (
    LISTED,
    Cron,
    Every,
    Missed,
    Schedule,
    decode,
    describe,
    encode,
    first_slot,
    is_missed,
    make_schedule,
    next_after_change,
    next_slot,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOON = datetime(2025, 6, 11, 12, 0, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)

EXPRESSIONS = ["*/20 * * * *", "30 2 * * *", "0 9 * * mon-fri", "0 */2 * * *", "15,45 1-3 * * *", "*/30 0 * * * *"]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago"]

moments = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - bounds are naive
intervals = st.timedeltas(timedelta(milliseconds=10), timedelta(days=400))
graces = st.timedeltas(timedelta(0), timedelta(days=1))
missed_ways: st.SearchStrategy[Missed] = st.sampled_from(["once", "all", "skip"])
grids: st.SearchStrategy[Schedule] = st.one_of(
    st.builds(Every, intervals, align=st.just(True), missed=missed_ways, missed_limit=st.integers(1, 20)),
    st.builds(
        Cron, st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), missed=missed_ways, missed_limit=st.integers(1, 20)
    ),
)
plain: st.SearchStrategy[Every] = st.builds(Every, intervals, after_finish=st.booleans())
quick = settings(deadline=None)


def with_missed(grid: Schedule, missed: Missed, limit: int = 100) -> Schedule:
    return msgspec.structs.replace(grid, missed=missed, missed_limit=limit)


def following(grid: Schedule, point: datetime) -> datetime:
    """The first aligned time after a moment, for a run that took no time."""
    return next_slot(with_missed(grid, "once"), nominal=point, started=point, finished=point).at


def points_between(grid: Schedule, after: datetime, until: datetime) -> list[datetime]:
    points, point = [], following(grid, after)
    while point <= until:
        points.append(point)
        point = following(grid, point)
    return points


# Rules for any schedule.


@pytest.mark.slow
@quick
@given(schedule=st.one_of(plain, grids), nominal=moments, started=moments, finished=moments)
def test_next_is_strictly_later(schedule: Schedule, nominal: datetime, started: datetime, finished: datetime) -> None:
    """The next slot is strictly later than the last one, whatever the clocks show."""
    answer = next_slot(schedule, nominal=nominal, started=started, finished=finished)
    assert answer.at > nominal
    for earlier, later in pairwise([nominal, *answer.skipped, answer.at]):
        assert earlier < later


@quick
@given(interval=intervals, nominal=moments, late=st.timedeltas(timedelta(0), 90 * MINUTE), length=intervals)
def test_every_counts_exactly_from_the_start(
    interval: timedelta, nominal: datetime, late: timedelta, length: timedelta
) -> None:
    """Next nominal time − start = the interval exactly, however late the start and however long the body."""
    started = nominal + late
    answer = next_slot(Every(interval), nominal=nominal, started=started, finished=started + length)
    assert answer.at - started == interval
    assert answer.skipped == ()


@quick
@given(interval=intervals, nominal=moments, length=intervals)
def test_after_finish_counts_exactly_from_the_end(interval: timedelta, nominal: datetime, length: timedelta) -> None:
    """With after_finish the pause between two runs is the interval exactly."""
    answer = next_slot(Every(interval, after_finish=True), nominal=nominal, started=nominal, finished=nominal + length)
    assert answer.at - (nominal + length) == interval


@quick
@given(interval=intervals, missed=missed_ways, nominal=moments, started=moments)
def test_aligned_slots_lie_on_the_grid(
    interval: timedelta, missed: Missed, nominal: datetime, started: datetime
) -> None:
    """Aligned slots, run or skipped, are whole multiples of the interval since the epoch."""
    every = Every(interval, align=True, missed=missed)
    answer = next_slot(every, nominal=nominal, started=started, finished=started)
    for point in [answer.at, *answer.skipped, first_slot(every, nominal)]:
        assert (point - EPOCH) % interval == timedelta(0)


@quick
@given(cron=grids.filter(lambda grid: isinstance(grid, Cron)), nominal=moments, length=st.timedeltas(MINUTE, 5 * HOUR))
def test_cron_slots_lie_on_the_grid(cron: Schedule, nominal: datetime, length: timedelta) -> None:
    """Cron slots, run or skipped, are times that the expression names."""
    answer = next_slot(cron, nominal=nominal, started=nominal, finished=nominal + length)
    for point in [answer.at, *answer.skipped]:
        assert following(cron, point - timedelta(microseconds=1)) == point


@quick
@given(grid=grids, nominal=moments, late=intervals, length=intervals)
def test_once_covers_all_that_was_missed(grid: Schedule, nominal: datetime, late: timedelta, length: timedelta) -> None:
    """With missed="once" one body gives one slot: the first time after its start, and none is listed as skipped."""
    started = nominal + late
    answer = next_slot(with_missed(grid, "once"), nominal=nominal, started=started, finished=started + length)
    assert answer.at == following(grid, started)
    assert answer.skipped == ()


def reachable_end(grid: Schedule, nominal: datetime, steps: int) -> datetime:
    """A moment that is `points` times after the nominal time."""
    for _ in range(steps):
        nominal = following(grid, nominal)
    return nominal


@pytest.mark.slow
@quick
@given(grid=grids, nominal=moments, steps=st.integers(0, 40), late=st.floats(0, 1), grace=graces)
def test_skip_leaves_no_gap(grid: Schedule, nominal: datetime, steps: int, late: float, grace: timedelta) -> None:
    """With missed="skip" the newest time runs if it is within the grace; skipped ones and the next leave no gap."""
    end = reachable_end(grid, nominal, steps)
    finished = end + late * (following(grid, end) - end)
    skip = msgspec.structs.replace(with_missed(grid, "skip"), missed_grace=grace)
    answer = next_slot(skip, nominal=nominal, started=nominal, finished=finished)
    passed = points_between(grid, nominal, finished)
    in_time = [point for point in passed[-1:] if finished <= point + grace]
    assert [*answer.skipped, *in_time] == passed
    assert answer.at == (in_time or [following(grid, finished)])[0]


@pytest.mark.slow
@quick
@given(grid=grids, nominal=moments, steps=st.integers(0, 40), limit=st.integers(1, 30))
def test_all_runs_each_up_to_its_limit(grid: Schedule, nominal: datetime, steps: int, limit: int) -> None:
    """With missed="all" each time runs, except the oldest beyond the limit; skipped and next leave no gap."""
    finished = reachable_end(grid, nominal, steps)
    answer = next_slot(with_missed(grid, "all", limit), nominal=nominal, started=nominal, finished=finished)
    assert len(answer.skipped) == max(0, steps - limit)
    assert [*answer.skipped, answer.at] == points_between(grid, nominal, answer.at)


@pytest.mark.parametrize(
    "grid", [Every(timedelta(seconds=1), align=True), Cron("* * * * * *"), Cron("* * * * * *", "Europe/Berlin")]
)
def test_a_year_of_outage_is_bounded(grid: Schedule) -> None:
    """After a year without a worker a schedule of every second lists its newest missed times up to the limit."""
    back = NOON + timedelta(days=365)
    skip = next_slot(with_missed(grid, "skip"), nominal=NOON, started=back, finished=back)
    assert skip.at == back
    assert skip.skipped == tuple(back - timedelta(seconds=n) for n in range(LISTED, 0, -1))
    catch_up = next_slot(with_missed(grid, "all", 10), nominal=NOON, started=back, finished=back)
    assert catch_up.at == back - timedelta(seconds=9)
    assert len(catch_up.skipped) == LISTED
    assert catch_up.skipped[-1] == back - timedelta(seconds=10)


def test_clock_set_back() -> None:
    """A database clock set back by a day neither repeats nor reorders slots."""
    yesterday = NOON - timedelta(days=1)
    plain_next = next_slot(Every(MINUTE), nominal=NOON, started=yesterday, finished=yesterday)
    assert plain_next.at == NOON + timedelta(microseconds=1)
    for missed in ("once", "all", "skip"):
        grid = Every(MINUTE, align=True, missed=missed)
        assert next_slot(grid, nominal=NOON, started=yesterday, finished=yesterday) == (NOON + MINUTE, ())


def test_the_example_of_the_docstring() -> None:
    """The example at the top of the module."""
    times: dict[str, Any] = {"nominal": NOON, "started": NOON + 2.4 * MINUTE, "finished": NOON + 3.5 * MINUTE}
    two, three, four, five = (NOON + n * MINUTE for n in range(1, 5))
    assert next_slot(Every(MINUTE, align=True), **times) == (four, ())
    assert next_slot(Every(MINUTE, align=True, missed="all"), **times) == (two, ())
    assert next_slot(Every(MINUTE, align=True, missed="skip"), **times) == (four, (two, three))
    strict = Every(MINUTE, align=True, missed="skip", missed_grace=MINUTE / 4)
    assert next_slot(strict, **times) == (five, (two, three, four))


# The first slot, late slots, changed declarations.


def test_first_slot() -> None:
    """`every` starts at once, an aligned one at or after now, cron strictly after now."""
    assert first_slot(Every(HOUR), NOON + MINUTE) == NOON + MINUTE
    assert first_slot(Every(HOUR, align=True), NOON) == NOON
    assert first_slot(Every(HOUR, align=True), NOON + MINUTE) == NOON + HOUR
    assert first_slot(Cron("0 * * * *"), NOON) == NOON + HOUR
    assert first_slot(Cron("0 9 * * mon-fri", "Europe/Berlin"), NOON) == datetime(2025, 6, 12, 7, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("missed", "late", "attempt", "expected"),
    [
        ("skip", 61, 1, True),
        ("skip", 60, 1, False),  # the grace itself is still in time
        ("skip", 3600, 2, False),  # a retry started in time once; it continues
        ("once", 3600, 1, False),
        ("all", 3600, 1, False),
    ],
)
def test_is_missed(missed: Missed, late: int, attempt: int, expected: bool) -> None:
    """Only missed="skip" drops a slot, only if it is later than the grace, and only at its first attempt."""
    cron = Cron("0 * * * *", missed=missed)
    assert is_missed(cron, nominal=NOON, claimed_at=NOON + timedelta(seconds=late), attempt=attempt) is expected


def test_plain_intervals_are_never_missed() -> None:
    """An interval that counts from the last run is run however late it is."""
    assert not is_missed(Every(MINUTE), nominal=NOON, claimed_at=NOON + 9 * HOUR, attempt=1)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (Every(HOUR), Every(MINUTE), NOON + MINUTE),  # shortened: not an hour from now
        (Every(HOUR), Every(2 * HOUR), NOON + 30 * MINUTE),  # lengthened: the announced slot stays
        (None, Every(HOUR), NOON),
        (Cron("0 9 * * *"), Every(HOUR), NOON),
        (Every(HOUR), Cron("0 9 * * *"), datetime(2025, 6, 12, 9, 0, tzinfo=UTC)),
        (Cron("0 9 * * *"), Cron("0 13 * * *"), NOON + HOUR),
        (Every(HOUR), Every(HOUR, align=True), NOON),
    ],
)
def test_changed_declaration(old: Schedule | None, new: Schedule, expected: datetime) -> None:
    """A changed declaration applies from now on, and a plain interval never delays its next slot."""
    assert next_after_change(old, new, next_run_time=NOON + 30 * MINUTE, now=NOON) == expected


def test_changed_treatment_of_missed_slots_moves_nothing() -> None:
    """A slot that is due is not lost if only `missed` changes."""
    due = NOON - HOUR
    old, new = Cron("0 * * * *"), Cron("0 * * * *", missed="all")
    assert next_after_change(old, new, next_run_time=due, now=NOON) == due


# Text.


@quick
@given(schedule=st.one_of(plain, grids), grace=st.timedeltas(timedelta(0), timedelta(days=36_525)))
def test_json_round_trip(schedule: Schedule, grace: timedelta) -> None:
    """What is stored is read back as the same value."""
    if schedule.missed != "once":
        schedule = msgspec.structs.replace(schedule, missed_grace=grace)
    assert decode(encode(schedule)) == schedule


@pytest.mark.parametrize(
    ("schedule", "text", "words"),
    [
        (Every(10 * MINUTE), '{"every":"10m"}', "every 10m"),
        (Every(10 * MINUTE, align=True), '{"every":"10m","align":true}', "every 10m on the grid"),
        (Every(HOUR, after_finish=True), '{"every":"1h","after_finish":true}', "every 1h after finishing"),
        (Cron("0 9 * * *"), '{"cron":"0 9 * * *"}', "cron 0 9 * * * UTC"),
        (
            Cron("0 9 * * mon-fri", "Europe/Berlin", missed="all", missed_limit=5),
            '{"cron":"0 9 * * mon-fri","timezone":"Europe/Berlin","missed":"all","missed_limit":5}',
            "cron 0 9 * * mon-fri Europe/Berlin",
        ),
    ],
)
def test_stored_text(schedule: Schedule, text: str, words: str) -> None:
    """The row has readable JSON: durations as text, defaults left out."""
    assert encode(schedule) == text
    assert decode(text) == schedule
    assert describe(schedule) == words


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "null",
        "{}",
        "[]",
        '{"every":600}',
        '{"every":"10m","cron":"* * * * *"}',
        '{"evry":"10m"}',
        '{"every":"10m","align":"yes"}',
        '{"cron":"61 * * * *"}',
        '{"cron":"0 9 * * *","timezone":"Mars/Olympus"}',
        '{"every":"10m","missed":"never"}',
        '{"cron":"\ud800"}',
    ],
)
def test_invalid_text_is_refused(text: str) -> None:
    """A row without a valid schedule raises one kind of error, never another."""
    with pytest.raises(DeclarationError):
        decode(text)


# Declarations.


def test_declarations() -> None:
    """What people write becomes the value they mean; nothing written means no schedule."""
    assert make_schedule() is None
    assert make_schedule(every="1h30m") == Every(90 * MINUTE)
    assert make_schedule(every=HOUR, align=True, missed="skip", missed_grace="5m") == Every(
        HOUR, align=True, missed="skip", missed_grace=5 * MINUTE
    )
    assert make_schedule(cron=" 0  9 * * mon-fri ", timezone="Europe/Berlin") == Cron(
        "0 9 * * mon-fri", "Europe/Berlin"
    )
    assert make_schedule(cron="0 0 L * *") == Cron("0 0 L * *")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": "10m", "cron": "* * * * *"}, "both given. Keep one"),
        ({"every": "10m", "timezone": "UTC"}, "timezone needs cron"),
        ({"timezone": "UTC"}, "timezone needs cron"),
        ({"align": True}, "need every"),
        ({"cron": "* * * * *", "after_finish": True}, "need every"),
        ({"every": "10m", "align": True, "after_finish": True}, "cannot be combined"),
        ({"every": "10m", "missed": "all"}, "Add align=True"),
        ({"every": "10m", "missed_limit": 3}, "Add align=True"),
        ({"missed": "all"}, "missed needs a schedule"),
        ({"every": 600}, 'write "10s"'),
        ({"every": "600"}, 'write "10s"'),
        ({"every": "0s"}, "too short for an interval"),
        ({"every": timedelta(seconds=-1)}, "negative"),
        ({"every": "99999999999d"}, "at most 36525d"),
        ({"every": "9" * 400 + "d"}, "at most 36525d"),
        ({"cron": "* * * * *", "missed": "never"}, '"once", "all" or "skip"'),
        ({"cron": "* * * * *", "missed": "all", "missed_limit": 0}, "from 1 to 1000"),
        ({"cron": "* * * * *", "missed": "all", "missed_limit": "5"}, "from 1 to 1000"),
        ({"cron": "* * * * *", "missed_grace": 5}, "missed_grace"),
        ({"cron": "61 * * * *"}, '"61 * * * *" cannot be read: bad minute. Write five fields'),
        ({"cron": "@daily"}, '"@daily" cannot be read: wrong number of fields'),
        ({"cron": ""}, "wrong number of fields"),
        ({"cron": 5}, "wrong number of fields"),
        ({"cron": f"{'9' * 5000} * * * *"}, "cannot be read"),
        ({"cron": "0 0 30 2 *"}, "cannot be read: bad day-of-month"),
        ({"cron": "0 0 * 2 mon#5", "timezone": "Europe/Berlni"}, 'Did you mean "Europe/Berlin"?'),
        ({"cron": "* * * * *", "timezone": "europe"}, "is not known"),
        ({"cron": "* * * * *", "timezone": "../etc/passwd"}, "is not known"),
        ({"cron": "* * * * *", "timezone": ""}, 'such as "Europe/Berlin"'),
        ({"cron": "* * * * *", "timezone": 1}, "is not known"),
    ],
)
def test_wrong_declarations(options: dict[str, Any], words: str) -> None:
    """An impossible declaration is refused, with what to write instead."""
    with pytest.raises(DeclarationError) as caught:
        make_schedule(**options)
    assert words in str(caught.value)


def test_a_time_that_never_comes() -> None:
    """An expression that never matches is refused at its declaration, not when it is due."""
    with pytest.raises(DeclarationError, match="never matches"):
        make_schedule(cron="0 0 */31 * mon#5")  # the first of a month is never its fifth Monday


def test_intervals_need_no_calendar() -> None:
    """A program with intervals only loads neither cronsim nor time zones."""
    program = (
        'import sys; from reltask.model.schedule import decode; decode(\'{"every":"10m"}\'); '
        "sys.exit(bool({'cronsim', 'zoneinfo'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
