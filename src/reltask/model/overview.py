"""What the overview shows: counts by queue and task, the fleet, leases, and the runs of the last hour.

    stores: read_overview ──► Overview ──► problems.py: sentences for people
                                      └──► the dashboard's numbers, the exporter's gauges

One read every two seconds serves all viewers of a process. Counting stops at MOST, so that the cost does not grow
with the number of jobs; a count that was stopped says so (`Count.more`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from reltask.model.views import read_names

MOST = 10_000
"""Jobs are counted up to this number; beyond it the answer is "more than"."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Count(NamedTuple):
    """A number of jobs; `more`: there are more than this."""

    jobs: int = 0
    more: bool = False

    def __add__(self, other: object) -> Count:
        return Count(self.jobs + other.jobs, self.more or other.more) if isinstance(other, Count) else NotImplemented

    def __str__(self) -> str:
        return f"more than {self.jobs:,}" if self.more else f"{self.jobs:,}"


class Lane(Struct, frozen=True, array_like=True):
    """Unclaimed jobs of one task in one queue."""

    queue: str
    task: str
    due_jobs: int
    more_due: bool
    oldest_us: int | None
    later_jobs: int
    more_later: bool
    suspended: int
    failing: int
    """Waiting for another attempt."""
    soonest_us: int | None

    @property
    def due(self) -> Count:
        return Count(self.due_jobs - self.more_due, self.more_due)

    @property
    def later(self) -> Count:
        """Scheduled for a time in the future, without those that are suspended."""
        return Count(max(0, self.later_jobs - self.more_later - self.suspended), self.more_later)

    @property
    def oldest(self) -> datetime | None:
        return at(self.oldest_us)


class Group(Struct, frozen=True, array_like=True):
    """Claimed, paused or dead jobs of one task in one queue."""

    queue: str
    task: str
    jobs: int
    lately: int
    """Claimed: those whose lock has expired. Dead: those of the last hour."""
    at_us: int | None

    @property
    def at(self) -> datetime | None:
        """Claimed: the earliest end of a lock. Otherwise the latest."""
        return at(self.at_us)


class Recurring(Struct, frozen=True, array_like=True):
    """The schedules of one task."""

    task: str
    jobs: int
    last_run_us: int | None
    due_us: int | None

    @property
    def last_run(self) -> datetime | None:
        return at(self.last_run_us)


class WorkerGroup(Struct, frozen=True, array_like=True):
    """Live workers that serve the same queues and know the same tasks."""

    queues_json: str
    tasks_json: str
    version: str
    app_version: str | None
    workers: int
    places: int

    @property
    def queues(self) -> list[str]:
        return read_names(self.queues_json)

    @property
    def tasks(self) -> list[str]:
        return read_names(self.tasks_json)


class WorkerState(Struct, frozen=True, array_like=True):
    """How many workers are alive, dead or stopped."""

    state: str
    workers: int
    lately: int
    """With a heartbeat in the last hour."""
    heartbeat_us: int | None


class LeaseSummary(Struct, frozen=True, array_like=True):
    """A lease, and whether it is held."""

    name: str
    holder: str | None
    term: int
    held: bool
    waiting: int
    expires_us: int

    @property
    def expires_at(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self.expires_us)


class Minute(Struct, frozen=True, array_like=True):
    """The runs that ended in one minute."""

    minute_us: int
    succeeded: int
    failed: int

    @property
    def seconds(self) -> int:
        """Since 1970."""
        return self.minute_us // 1_000_000


class TaskHour(Struct, frozen=True, array_like=True):
    """The runs of one task in the last hour."""

    task: str
    succeeded: int
    failed: int
    seconds: float
    late: float
    late_most: float

    @property
    def runs(self) -> int:
        return self.succeeded + self.failed


class PauseSummary(Struct, frozen=True, array_like=True):
    """A queue or a task of which nothing is claimed."""

    kind: str
    name: str
    reason: str | None
    by: str
    at_us: int

    @property
    def at(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self.at_us)

    def covers(self, *, queue: str, task: str) -> bool:
        """Whether it keeps the jobs of this task in this queue from being claimed."""
        return self.name == (queue if self.kind == "queue" else task)


class Overview(Struct, frozen=True, kw_only=True):
    """The state of the whole system at one time."""

    now: datetime
    most: int
    lanes: list[Lane]
    claimed: list[Group]
    paused: list[Group]
    dead: list[Group]
    recurring: list[Recurring]
    fleet: list[WorkerGroup]
    states: list[WorkerState]
    leases: list[LeaseSummary]
    minutes: list[Minute]
    tasks: list[TaskHour]
    pauses: list[PauseSummary]
    away: list[int] = []
    """Shards that do not answer: nothing of them is counted."""

    @property
    def due(self) -> Count:
        return total(lane.due for lane in self.lanes)

    @property
    def later(self) -> Count:
        return total(lane.later for lane in self.lanes)

    @property
    def suspended(self) -> int:
        return sum(lane.suspended for lane in self.lanes)

    @property
    def failing(self) -> int:
        return sum(lane.failing for lane in self.lanes)

    @property
    def running(self) -> int:
        return sum(group.jobs for group in self.claimed)

    @property
    def expired(self) -> int:
        """Claimed jobs whose lock has expired."""
        return sum(group.lately for group in self.claimed)

    @property
    def paused_jobs(self) -> Count:
        return _capped(self.paused)

    @property
    def dead_jobs(self) -> Count:
        return _capped(self.dead)

    @property
    def places(self) -> int:
        """How many jobs the live workers can run at the same time."""
        return sum(fleet.places for fleet in self.fleet)

    @property
    def queues(self) -> list[str]:
        """Every queue that has jobs or a worker."""
        named = {group.queue for group in [*self.claimed, *self.paused, *self.dead]}
        named |= {lane.queue for lane in self.lanes}
        return sorted(named | {queue for fleet in self.fleet for queue in fleet.queues})

    @property
    def task_names(self) -> set[str]:
        """Every task that a job, a run or a live worker names."""
        groups: list[Lane | Group | TaskHour | Recurring] = [*self.lanes, *self.claimed, *self.paused, *self.dead]
        groups += [*self.tasks, *self.recurring]
        return {group.task for group in groups} | {task for fleet in self.fleet for task in fleet.tasks}

    @property
    def is_empty(self) -> bool:
        """Nothing has ever happened here: no jobs, no workers, no runs."""
        return not (self.lanes or self.claimed or self.paused or self.dead or self.states or self.tasks)

    def workers(self, state: str) -> int:
        """How many workers are alive, dead or stopped."""
        return sum(found.workers for found in self.states if found.state == state)

    def serves(self, queue: str, task: str | None = None) -> int:
        """How many live workers serve this queue, and know this task."""
        return sum(
            fleet.workers for fleet in self.fleet if queue in fleet.queues and (task is None or task in fleet.tasks)
        )

    def knows(self, task: str) -> int:
        """How many live workers know this task."""
        return sum(fleet.workers for fleet in self.fleet if task in fleet.tasks)

    def pause_of(self, *, queue: str, task: str = "") -> PauseSummary | None:
        """What keeps the jobs of this task in this queue from being claimed."""
        return next((pause for pause in self.pauses if pause.covers(queue=queue, task=task)), None)

    def oldest_due(self, queue: str) -> datetime | None:
        """The earliest due time of an unclaimed job of this queue; None: nothing is due."""
        return min((lane.oldest for lane in self.lanes if lane.queue == queue and lane.oldest), default=None)

    def age(self, time: datetime | None) -> timedelta:
        """How long ago that was."""
        return timedelta(0) if time is None else max(timedelta(0), self.now - time)


_PARTS: dict[str, type] = {
    "lanes": Lane,
    "claimed": Group,
    "paused": Group,
    "dead": Group,
    "recurring": Recurring,
    "fleet": WorkerGroup,
    "states": WorkerState,
    "leases": LeaseSummary,
    "minutes": Minute,
    "tasks": TaskHour,
    "pauses": PauseSummary,
}


def read_overview(now_us: int, most: int, parts: Mapping[str, Sequence[Sequence[Any]]]) -> Overview:
    """From rows of any database: each part is a list of rows, in the order of the fields of its type."""
    read = {
        name: msgspec.convert([tuple(row) for row in parts[name]], list[kind], strict=False)  # type: ignore[valid-type]
        for name, kind in _PARTS.items()
    }
    return Overview(now=_EPOCH + timedelta(microseconds=now_us), most=most, **read)


def total(counts: Iterable[Count]) -> Count:
    """The sum; it says "more than" if one of the counts does."""
    return sum(counts, Count())


def at(microseconds: int | None) -> datetime | None:
    """A time that a statement returned as microseconds since 1970."""
    return None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)


def _capped(groups: list[Group]) -> Count:
    jobs = sum(group.jobs for group in groups)
    return Count(min(jobs, MOST), jobs > MOST)
