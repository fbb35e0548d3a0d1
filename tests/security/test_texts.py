"""Everything that reads text from the database: any text gives a value or the documented error, and nothing else.

The tables refuse most of these texts, but a table may be older than its rules, and notifications have none.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reltask.errors import ArgumentsError, DeclarationError
from reltask.model import schedule
from reltask.model.arguments import Arguments
from reltask.model.schedule import SHORTEST_INTERVAL, Every
from reltask.model.views import read_names
from reltask.stores.postgres.values import from_payload, worker_view
from reltask.worker.declare import is_older

NOW = datetime(2026, 1, 1, tzinfo=UTC)
numbers = st.integers() | st.floats(allow_nan=True, allow_infinity=True)
durations = st.builds(
    lambda number, unit: f"{number}{unit}", numbers, st.sampled_from(["us", "ms", "s", "m", "h", "d", ""])
)
leaves = st.none() | st.booleans() | numbers | st.text() | durations
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)
texts = st.text() | values.map(json.dumps) | st.integers(1, 50_000).map(lambda depth: "[" * depth + "]" * depth)
"""JSON of any shape, with Infinity and NaN, which are none; deep nesting; and text that is no JSON."""
cron_fields = st.sampled_from(
    ["*", "0", "59", "60", "*/0", "*/7", "1-3", "3-1", "L", "mon#5", "?", "99999999999", "-1"]
)
crons = st.lists(cron_fields, min_size=4, max_size=7).map(" ".join) | st.text(max_size=30)
zones = (
    st.sampled_from(["UTC", "Europe/Berlin", "../../etc/passwd", "/etc/passwd", "", "\0", "Europe/", "."]) | st.text()
)
schedules = st.fixed_dictionaries(
    {},
    optional={
        "every": durations | leaves,
        "cron": crons | leaves,
        "timezone": zones | leaves,
        "align": values,
        "after_finish": values,
        "missed": st.sampled_from(["once", "all", "skip"]) | values,
        "missed_limit": values,
        "missed_grace": durations | values,
        "more": values,
    },
)


@pytest.mark.slow
@given(text=texts | schedules.map(json.dumps))
def test_schedule_is_read_or_refused(text: str) -> None:
    """A DeclarationError, or a schedule that does not loop and whose slots can be computed."""
    try:
        read = schedule.decode(text)
    except DeclarationError:
        return
    assert not isinstance(read, Every) or read.interval >= SHORTEST_INTERVAL
    try:
        following = schedule.next_slot(read, nominal=NOW, started=NOW, finished=NOW + timedelta(hours=1))
    except (OverflowError, DeclarationError):  # the worker fails the slot: beyond the last year, or never
        return
    assert following.at > NOW


class Colour(Enum):
    RED = "red"


def body(*, token: str, number: int, ratio: float, at: datetime, colour: Colour, job: UUID, anything: Any) -> None: ...


NAMES = ("token", "number", "ratio", "at", "colour", "job", "anything", "more")
arguments = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, values))
ARGUMENTS = Arguments(body, skip_first=False)


@pytest.mark.slow
@given(text=texts | arguments.map(json.dumps))
def test_arguments_are_read_or_refused(text: str) -> None:
    """Keyword arguments, or an ArgumentsError."""
    try:
        assert set(ARGUMENTS.decode(text)) == set(NAMES[:-1])
    except ArgumentsError:
        return


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_arguments_may_be_nested_too_deep(depth: int) -> None:
    """Deep JSON is an ArgumentsError, too, not a RecursionError."""
    with pytest.raises(ArgumentsError):
        ARGUMENTS.decode('{"anything": ' + "[" * depth + "]" * depth + "}")


@pytest.mark.slow
@given(text=texts | st.integers().map(str) | st.integers().map("*{}".format) | st.integers(0, 8000).map("9".__mul__))
def test_signal_is_a_time_or_now(text: str) -> None:
    """A payload that cannot be read means now."""
    news = from_payload(text)
    assert news is None or (news >= 0 if isinstance(news, int) else news.tzinfo is not None)


@pytest.mark.slow
@given(queues=texts, tasks=texts)
def test_workers_row_is_shown(queues: str, tasks: str) -> None:
    """Lists of names, or the text itself, shortened."""
    row = ["w", "h", 1, "1", None, queues, tasks, 1, 0, NOW, NOW, "alive"]
    view = worker_view(row)
    assert all(isinstance(name, str) for name in [*view.queues, *view.tasks])
    assert read_names(queues) == view.queues


@pytest.mark.slow
@given(ours=st.text() | st.from_regex(r"v?[0-9.]{1,2000}(rc1)?", fullmatch=True), theirs=st.text(max_size=2000))
def test_versions_compare(ours: str, theirs: str) -> None:
    """The version of a declaration may be any text that fits into the table."""
    assert not (is_older(ours, theirs) and is_older(theirs, ours))
