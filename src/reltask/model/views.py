"""What the API and the command line show: rows of the tables as frozen values."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from reltask.model.escape import escape
from reltask.model.job import Outcome, State
from reltask.model.lease import MAINTENANCE

_SHOWN = 100
"""Characters of a text that cannot be read."""


class JobView(Struct, frozen=True, kw_only=True):
    """One row of the jobs table."""

    id: UUID
    task: str
    key: str | None
    queue: str
    priority: int
    state: State
    schedule: str | None
    slot_no: int
    next_run_time: datetime
    due_at: datetime
    last_run_time: datetime | None
    attempt: int
    max_attempts: int | None
    fence: int
    locked_by: str | None
    locked_at: datetime | None
    heartbeat_at: datetime | None
    lock_expires_at: datetime | None
    progress: str | None
    isolated: bool
    created_at: datetime
    steps: int
    """Recorded in its current slot."""
    parent_id: UUID | None
    """The job that waits for its end."""

    def __repr__(self) -> str:
        """In one line what a reader asks first. No payload: the line may go into a log."""
        most = "" if self.max_attempts is None else f" of {self.max_attempts}"
        held = "" if self.locked_by is None else f", on {self.locked_by!r}"
        now = f"{self.state}, due {_utc(self.due_at)}, attempt {self.attempt}{most}{held}"
        return f"<job {self.id} of {escape(self.task)}: {now}>"


class RunView(Struct, frozen=True, kw_only=True):
    """One row of the ledger."""

    job_id: UUID
    fence: int
    slot_no: int
    task: str
    key: str | None
    queue: str
    worker: str | None
    attempt: int
    nominal_time: datetime
    due_at: datetime
    claimed_at: datetime | None
    finished_at: datetime
    outcome: Outcome
    error: str | None
    result: str | None
    steps: int | None
    """How many steps its slot had recorded when it ended; None: none, or the slot went on."""

    def __repr__(self) -> str:
        """As a job's: neither its error nor its result."""
        held = "" if self.worker is None else f", on {self.worker!r}"
        ended = f"{self.outcome} at {_utc(self.finished_at)}, attempt {self.attempt}{held}"
        return f"<run {self.fence} of job {self.job_id} of {escape(self.task)}, slot {self.slot_no}: {ended}>"


class JobEnd(Struct, frozen=True, kw_only=True):
    """How a job has ended, or why its end cannot be waited for."""

    job_id: UUID
    recurring: bool
    """Its slots end, but it does not."""
    dead: bool
    outcome: Outcome | None
    """Of its last run in the ledger; None: there is neither a row nor a run of it."""
    result: str | None
    """JSON; None: it returned None, or something that could not be stored."""
    error: str | None


class WorkerView(Struct, frozen=True, kw_only=True):
    """One row of the workers table."""

    id: str
    host: str
    pid: int
    version: str
    app_version: str | None
    queues: list[str]
    tasks: list[str]
    concurrency: int
    running: int
    started_at: datetime
    heartbeat_at: datetime
    state: str
    """alive, stopped, or dead (marked so, or its row was not refreshed in time)."""


class StatusView(Struct, frozen=True, kw_only=True):
    """The state of the whole system."""

    now: datetime
    workers_alive: int
    ready: int
    """Waiting for a time in the future."""
    suspended: int
    """Durable functions that wait for a time in the future, a signal or their children."""
    due: int
    running: int
    expired: int
    """Claimed, but the lock has expired and no worker has reclaimed it yet."""
    failing: int
    """Unclaimed, with at least one failed attempt of the current slot."""
    paused: int
    dead: int
    next_due: datetime | None
    unknown: dict[str, int]
    """Due jobs by task name, where no live worker knows the name."""
    circuit: str = "closed"
    """The state of this process's circuit breaker; inside a worker, the worker's own."""
    away: list[int] = []
    """Shards that do not answer, and are not counted."""


class LeaseView(Struct, frozen=True, kw_only=True):
    """One lease."""

    name: str
    holder: str | None
    """None: it was resigned."""
    term: int
    acquired_at: datetime
    heartbeat_at: datetime
    ttl: timedelta
    expires_at: datetime
    held: bool
    """Whether it had a holder and had not expired when it was read."""
    waiting: int
    metadata: str
    """JSON that its holder last published: last_run, items, errors and its own values."""
    now: datetime

    @property
    def published(self) -> dict[str, Any]:
        """The metadata as values; nothing if it is not an object."""
        try:
            return msgspec.json.decode(self.metadata, type=dict[str, Any])
        except msgspec.DecodeError:
            return {}

    @property
    def last_run(self) -> datetime | None:
        """When its holder last finished work, as it published."""
        try:
            return msgspec.convert(self.published.get("last_run"), datetime | None)
        except msgspec.ValidationError:
            return None

    def is_stuck(self, long: timedelta) -> bool:
        """Whether it is held and renewed, but its holder has finished no work for `long`.

        A holder that never publishes its progress cannot be judged; the maintenance lease always does.
        """
        publishes = self.name == MAINTENANCE or "last_run" in self.published
        return self.held and publishes and self.now - (self.last_run or self.acquired_at) >= long


class MetricView(Struct, frozen=True, kw_only=True):
    """One task in one minute."""

    minute: datetime
    task: str
    succeeded: int
    failed: int
    """Runs that failed, were lost or were abandoned."""
    seconds: float
    """Sum of the durations, claim to end, of these runs."""
    seconds_most: float
    late: float
    """Sum of the lateness, due time to claim."""
    late_most: float


class ShardView(Struct, frozen=True, kw_only=True):
    """One shard of a system."""

    number: int
    answers: bool
    draining: bool = False
    jobs: int | None = None
    """Jobs that have not ended; None: it does not answer."""


def read_names(text: str) -> list[str]:
    """A worker's queues or tasks. A row that is not a list of names is shown as it is: it must not hide the others."""
    try:
        return msgspec.json.decode(text, type=list[str])
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return [str(text)[:_SHOWN]]


def _utc(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"
