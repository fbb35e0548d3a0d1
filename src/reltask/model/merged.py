"""What several shards report, as one system reports it.

Each kind of row says by which fields rows of different shards are the same thing. Of the other
fields numbers are added, and those named in `most` or `least` are the largest or the smallest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from reltask.model.audit import LossCount, TaskCount, Wait
from reltask.model.control import PauseView
from reltask.model.limit import LimitKeyView, LimitView
from reltask.model.overview import Group, Lane, Minute, Overview, Recurring, TaskHour, WorkerGroup, WorkerState
from reltask.model.views import MetricView, StatusView, WorkerView

S = TypeVar("S", bound=Struct)


class Rule(NamedTuple):
    """How rows of one kind are merged."""

    same: tuple[str, ...]
    most: tuple[str, ...] = ()
    least: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    """Fields of the first row: they are the same on every shard."""


RULES: dict[type[Struct], Rule] = {
    StatusView: Rule((), most=("now", "workers_alive"), least=("next_due",), first=("unknown", "circuit", "away")),
    WorkerView: Rule(
        ("id",),
        most=("heartbeat_at",),
        least=("started_at", "state"),  # alive before dead and stopped: it serves at least one shard
        first=("host", "pid", "version", "app_version", "queues", "tasks", "concurrency"),
    ),
    PauseView: Rule(("kind", "name"), first=("reason", "paused_by", "paused_at")),
    LimitView: Rule(("name",), most=("keys",), first=("running", "rate", "burst")),  # which hold on each shard
    LimitKeyView: Rule(("key",)),
    MetricView: Rule(("minute", "task"), most=("seconds_most", "late_most")),
    TaskCount: Rule(("task",), most=("late_p50", "late_p95", "late_max")),
    Wait: Rule(("kind", "task", "queue"), least=("since",), first=("job_id",)),
    LossCount: Rule(("task", "outcome", "worker"), most=("last_at",), first=("reason",)),
    Lane: Rule(("queue", "task"), most=("more_due", "more_later"), least=("oldest_us", "soonest_us")),
    Group: Rule(("queue", "task"), most=("at_us",)),
    Recurring: Rule(("task",), most=("last_run_us",), least=("due_us",)),
    WorkerGroup: Rule(("queues_json", "tasks_json", "version", "app_version"), most=("workers", "places")),
    WorkerState: Rule(("state",), most=("workers", "lately", "heartbeat_us")),
    Minute: Rule(("minute_us",)),
    TaskHour: Rule(("task",), most=("late_most",)),
}


def merge(rows: Iterable[S]) -> list[S]:
    """One row for each thing, in the order of the first ones."""
    found: dict[tuple[Any, ...], list[S]] = {}
    for row in rows:
        found.setdefault(tuple(getattr(row, name) for name in RULES[type(row)].same), []).append(row)
    return [some[0] if len(some) == 1 else _one(some, RULES[type(some[0])]) for some in found.values()]


def _one(rows: Sequence[S], rule: Rule) -> S:
    changed: dict[str, Any] = {}
    for name in rows[0].__struct_fields__:
        if name in rule.same or name in rule.first:
            continue
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        fold: Callable[[Any], Any] = max if name in rule.most else min if name in rule.least else sum
        changed[name] = fold(values) if values else None
    return replace(rows[0], **changed)


def merge_status(found: Sequence[StatusView], away: Sequence[int]) -> StatusView:
    """The state of the whole system, as far as shards answer."""
    (status,) = merge(found)
    unknown: dict[str, int] = {}
    for one in found:
        for task, jobs in one.unknown.items():
            unknown[task] = unknown.get(task, 0) + jobs
    return replace(status, unknown=unknown, away=list(away))


def merge_overviews(found: Sequence[Overview], away: Sequence[int] = ()) -> Overview:
    """The dashboard's first page, as far as shards answer. Leases of the first shard are the system's own."""
    lists = ("lanes", "claimed", "paused", "dead", "recurring", "fleet", "states", "minutes", "tasks")
    together = {name: merge(row for one in found for row in getattr(one, name)) for name in lists}
    claimed = [_soonest(group, found) for group in together["claimed"]]
    return replace(found[0], **{**together, "claimed": claimed}, away=list(away))


def _soonest(group: Group, found: Sequence[Overview]) -> Group:
    """Of claimed jobs the earliest end of a lock is reported, of others the latest time."""
    ends = [
        one.at_us
        for overview in found
        for one in overview.claimed
        if (one.queue, one.task) == (group.queue, group.task) and one.at_us is not None
    ]
    return replace(group, at_us=min(ends, default=None))
