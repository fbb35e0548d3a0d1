"""Start, end and jitter of schedules, as properties; and when a schedule fires, for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reltask.errors import DeclarationError
from reltask.model.job import State
from reltask.model.preview import preview, view_schedule
from reltask.model.schedule import (
    Cron,
    Every,
    Missed,
    Schedule,
    decode,
    describe,
    encode,
    first_slot,
    has_ended,
    make_schedule,
    next_after_change,
    next_slot,
    upcoming,
)
from reltask.model.views import JobView

NOON = datetime(2025, 6, 11, 12, 0, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
EXPRESSIONS = ["*/20 * * * *", "30 2 * * *", "0 9 * * mon-fri", "15,45 1-3 * * *"]

moments = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - naive bounds
jitters = st.timedeltas(timedelta(0), timedelta(hours=30))
seeds = st.text(max_size=8)
missed_ways: st.SearchStrategy[Missed] = st.sampled_from(["once", "all", "skip"])
crons = st.builds(
    Cron,
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe"]),
    missed=missed_ways,
    jitter=jitters,
)
aligned = st.integers(30, 200_000).flatmap(
    lambda seconds: st.builds(
        Every,
        st.just(timedelta(seconds=seconds)),
        align=st.just(True),
        missed=missed_ways,
        jitter=st.timedeltas(timedelta(0), timedelta(seconds=seconds)),
    )
)
grids: st.SearchStrategy[Schedule] = st.one_of(crons, aligned)
quick = settings(deadline=None)


@quick
@given(grid=grids, moment=moments, seed=seeds)
def test_slots_with_jitter_keep_their_order_and_their_points(grid: Schedule, moment: datetime, seed: str) -> None:
    """Each slot is at most the jitter later than its point, before the next point, and there is one for each."""
    bare = msgspec.structs.replace(grid, jitter=timedelta(0))
    begin = first_slot(bare, moment)
    points = upcoming(bare, begin, count=6)
    slots = upcoming(grid, first_slot(grid, begin - timedelta(microseconds=1), seed), count=6, seed=seed)
    slots = [slot for slot in slots if slot >= begin][:5]
    for point, slot, following in zip(points, slots, points[1:], strict=False):
        assert point <= slot < following
        assert slot - point <= grid.jitter


@quick
@given(grid=grids, moment=moments, late=st.timedeltas(timedelta(0), timedelta(days=9)), seed=seeds)
def test_next_slot_is_later_and_the_same_everywhere(
    grid: Schedule, moment: datetime, late: timedelta, seed: str
) -> None:
    """Strictly later than the last, whatever the run took; a function of its arguments alone."""
    nominal = first_slot(grid, moment, seed)
    times = {"nominal": nominal, "started": nominal + late, "finished": nominal + late}
    answer = next_slot(grid, **times, seed=seed)
    assert answer.at > nominal
    assert answer == next_slot(grid, **times, seed=seed)
    assert list(answer.skipped) == sorted({*answer.skipped})
    assert all(nominal < skipped < answer.at for skipped in answer.skipped)


@given(seeds=st.lists(st.uuids(), min_size=40, max_size=40, unique=True))
@settings(deadline=None, max_examples=20)
def test_jobs_of_one_schedule_spread(seeds: list[UUID]) -> None:
    """Forty tenants at nine o'clock do not all start at nine."""
    rule = Cron("0 9 * * *", jitter=HOUR)
    slots = {first_slot(rule, NOON, str(seed)) for seed in seeds}
    assert len(slots) > 30
    assert max(slots) - min(slots) > HOUR / 2


@quick
@given(grid=grids, moment=moments, seed=seeds, wait=st.timedeltas(timedelta(0), timedelta(days=40)))
def test_no_slot_before_the_start(grid: Schedule, moment: datetime, seed: str, wait: timedelta) -> None:
    """The first slot is at or after the start, and at a point of the grid without a start."""
    bound = msgspec.structs.replace(grid, start=moment + wait)
    slot = first_slot(bound, moment, seed)
    assert slot >= moment + wait
    assert slot == first_slot(bound, moment + wait / 2, seed)


@quick
@given(grid=grids, moment=moments, seed=seeds, left=st.timedeltas(timedelta(0), timedelta(days=9)))
def test_no_slot_after_the_end(grid: Schedule, moment: datetime, seed: str, left: timedelta) -> None:
    """`upcoming` stops there, and a long outage brings nothing back from beyond it."""
    bound = msgspec.structs.replace(grid, end=moment + left)
    slots = upcoming(bound, first_slot(bound, moment, seed), count=50, seed=seed)
    assert all(slot <= moment + left for slot in slots)
    for slot in slots[:2]:
        late = slot + timedelta(days=30)
        following = next_slot(bound, nominal=slot, started=late, finished=late, seed=seed)
        assert has_ended(bound, following.at) or following.at <= moment + left


def test_plain_intervals_have_bounds_too() -> None:
    """`every` begins at its start, ends after its end, and its jitter is added to the interval."""
    rule = Every(HOUR, start=NOON + DAY, end=NOON + DAY + HOUR, jitter=10 * MINUTE)
    assert first_slot(rule, NOON) == NOON + DAY
    assert first_slot(rule, NOON + 2 * DAY) == NOON + 2 * DAY
    assert has_ended(rule, NOON + 2 * DAY)
    following = next_slot(rule, nominal=NOON, started=NOON, finished=NOON, seed="x").at
    assert NOON + HOUR <= following < NOON + HOUR + 10 * MINUTE
    assert next_after_change(Every(DAY), rule, next_run_time=NOON, now=NOON) == NOON + DAY


@given(rule=st.one_of(crons, aligned), start=st.none() | moments, length=st.none() | st.timedeltas(timedelta(0)))
def test_bounds_survive_the_row(rule: Schedule, start: datetime | None, length: timedelta | None) -> None:
    """What is stored is what was declared, and readable."""
    end = NOON + 70 * 365 * DAY if length is not None else None
    bound = msgspec.structs.replace(rule, start=start, end=end)
    assert decode(encode(bound)) == bound


@pytest.mark.parametrize(
    "given",
    [
        {"every": "1h", "start": datetime(2025, 1, 1)},  # noqa: DTZ001 - the mistake
        {"every": "1h", "start": NOON, "end": NOON - DAY},
        {"every": "1h", "jitter": "2h"},
        {"every": "1h", "jitter": "soon"},
        {"every": "1h", "end": "tomorrow"},
        {"cron": "0 9 * * *", "end": datetime(9500, 1, 1, tzinfo=UTC)},
        {"start": NOON},
        {"jitter": "5m"},
    ],
)
def test_wrong_bounds_are_refused(given: dict[str, object]) -> None:
    """When the decorator runs, not when a worker computes a slot."""
    with pytest.raises(DeclarationError):
        make_schedule(**given)  # type: ignore[arg-type]


def test_a_schedule_in_words() -> None:
    """Bounds and jitter are said."""
    rule = Cron("0 9 * * *", "Europe/Berlin", start=NOON, end=NOON + DAY, jitter=5 * MINUTE)
    assert describe(rule) == (
        "cron 0 9 * * * Europe/Berlin from 2025-06-11 12:00 UTC until 2025-06-12 12:00 UTC with up to 5m of jitter"
    )


def test_preview_marks_the_changes_of_the_clock() -> None:
    """02:30 does not exist on the day of the jump: it fires at 03:00, and in autumn once."""
    spring = preview(Cron("30 2 * * *", "Europe/Berlin"), datetime(2026, 3, 27, 12, tzinfo=UTC), count=3)
    assert [f"{fire.local:%d %H:%M}" for fire in spring] == ["28 02:30", "29 03:00", "30 02:30"]
    assert [fire.note for fire in spring] == ["", "clocks went forward 1h before it", ""]
    assert [f"{fire.utc:%H:%M}" for fire in spring] == ["01:30", "01:00", "00:30"]
    autumn = preview(Cron("0 9 * * *", "Europe/Berlin"), datetime(2026, 10, 24, 12, tzinfo=UTC), count=1)
    assert autumn[0].note == "clocks went back 1h before it"


def test_view_of_a_schedule_that_cannot_be_read() -> None:
    """It is listed all the same, and says why."""
    fields = dict.fromkeys(JobView.__struct_fields__)
    known = {"id": UUID(int=1), "task": "t", "queue": "q", "state": State.READY, "schedule": "{", "next_run_time": NOON}
    view = view_schedule(JobView(**(fields | known)))  # type: ignore[arg-type]
    assert (view.next_fires, view.timezone) == ([], "UTC")
    assert "not a stored schedule" in view.rule
    good = view_schedule(JobView(**(fields | known | {"schedule": '{"every":"1h","align":true}'})))  # type: ignore[arg-type]
    assert good.next_fires == [NOON + n * HOUR for n in range(5)]
