"""What happens in a worker, as typed values. Logs, metrics and tests subscribe; nothing else is told.

No event carries arguments, results or secrets: an event may end in a log that many can read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from msgspec import Struct


class Event(Struct, frozen=True, kw_only=True, gc=False):
    """The root: every event names the worker that it happened in."""

    worker: str


class RunEvent(Event, frozen=True, kw_only=True):
    """Something that happened to one run."""

    task: str
    job_id: UUID
    slot_no: int
    fence: int


class WorkerStarted(Event, frozen=True, kw_only=True):
    """A worker has registered itself and begins to claim."""

    queues: list[str]
    tasks: list[str]
    concurrency: int


class WorkerStopping(Event, frozen=True, kw_only=True):
    """A worker claims no more; its bodies may finish within the grace."""

    running: int
    grace: float


class WorkerStopped(Event, frozen=True, kw_only=True):
    """A worker has given back what it held."""

    unsettled: int
    """Runs whose outcome could not be written: their locks will expire."""


class JobsClaimed(Event, frozen=True, kw_only=True):
    """One claim statement took jobs."""

    count: int
    limit: int


class Idle(Event, frozen=True, kw_only=True):
    """Nothing to do until then, or until a signal."""

    seconds: float


class RunStarted(RunEvent, frozen=True, kw_only=True):
    """A body begins."""

    attempt: int
    late: float
    """Seconds between the due time and the claim, by the database's clock."""


class RunSucceeded(RunEvent, frozen=True, kw_only=True):
    """A slot's success has been committed."""

    seconds: float
    next_run_time: datetime | None


class RunFailed(RunEvent, frozen=True, kw_only=True):
    """A failure has been committed."""

    attempt: int
    error: str
    """The traceback."""
    retry_in: float
    dead: bool
    recurring: bool
    """Of a schedule, which stops if the job is dead."""


class RunEnded(RunEvent, frozen=True, kw_only=True):
    """Another outcome has been committed: cancelled, skipped, snoozed, released or abandoned."""

    outcome: str
    reason: str


class RunAbandoned(RunEvent, frozen=True, kw_only=True):
    """The worker no longer trusts its claim, and stops the body."""

    reason: str


class BodyStuck(RunEvent, frozen=True, kw_only=True):
    """A body does not stop: its place stays taken and its lock is left to expire."""

    seconds: float


class BodyEndedLate(RunEvent, frozen=True, kw_only=True):
    """A body that did not stop in time has ended after all."""


class LateWriteRefused(RunEvent, frozen=True, kw_only=True):
    """The database refused an outcome: the claim had passed to somebody else."""

    outcome: str


class ResultNotStored(RunEvent, frozen=True, kw_only=True):
    """The slot succeeded, but its return value could not be kept."""

    reason: str


class ErrorAfterCompletion(RunEvent, frozen=True, kw_only=True):
    """A body raised after its transaction had completed the slot: the slot stays completed."""

    error: str


class HeartbeatFailed(Event, frozen=True, kw_only=True):
    """A whole interval passed without a good beat."""

    failures: int
    limit: int
    error: str


class HeartbeatLate(Event, frozen=True, kw_only=True):
    """A beat was sent later than planned: the process was starved or paused."""

    seconds: float


class JobReclaimed(RunEvent, frozen=True, kw_only=True):
    """This worker took an expired claim away from its owner."""

    owner: str
    dead: bool


class StrayReleased(Event, frozen=True, kw_only=True):
    """A claim whose answer had been lost was found and given back."""

    job_id: UUID
    fence: int


class DatabaseUnavailable(Event, frozen=True, kw_only=True):
    """A statement failed; the worker waits and tries again."""

    verb: str
    error: str
    retry_in: float


class DatabaseBack(Event, frozen=True, kw_only=True):
    """The database answers again."""

    seconds: float


class CircuitChanged(Event, frozen=True, kw_only=True):
    """The breaker in front of the database opened, half-opened or closed."""

    state: str


class TasksUnknown(Event, frozen=True, kw_only=True):
    """Jobs are due whose task no live worker knows."""

    counts: dict[str, int]


class ScheduleLeftOver(Event, frozen=True, kw_only=True):
    """A recurring job goes on although the code does not declare it, or declares it under another name."""

    task: str
    key: str | None
    job_id: UUID
    beside: str | None
    """The name under which the task recurs as declared, so that it does twice; None: it is not declared any more."""


class ScheduleBlocked(Event, frozen=True, kw_only=True):
    """A declared schedule cannot be made yet: a job that runs once has its key."""

    task: str
    key: str | None
    job_id: UUID


class DeclarationIgnored(Event, frozen=True, kw_only=True):
    """A recurring job stays as a newer version of the app declared it; this worker's code declares it otherwise."""

    task: str
    key: str | None
    job_id: UUID
    version: str | None
    newer: str | None


class LeaseEvent(Event, frozen=True, kw_only=True):
    """Something that happened to one leadership. Its `worker` is the lease's holder, which need not be a worker."""

    lease: str
    term: int


class LeaseAcquired(LeaseEvent, frozen=True, kw_only=True):
    """This process leads."""


class LeaseLost(LeaseEvent, frozen=True, kw_only=True):
    """This process leads no more, and has not chosen to."""

    reason: str


class LeaseResigned(LeaseEvent, frozen=True, kw_only=True):
    """A lease was given back: somebody else can have it at once."""


class LeaseLeftToExpire(LeaseEvent, frozen=True, kw_only=True):
    """A lease could not be given back: somebody else can have it when it ends."""

    error: str


class WorkerDied(Event, frozen=True, kw_only=True):
    """This worker has marked another one as dead: it was silent for longer than it had promised."""

    who: str


class RunsPruned(Event, frozen=True, kw_only=True):
    """A batch of the ledger's oldest rows has been removed."""

    count: int


class MaintenanceFailed(Event, frozen=True, kw_only=True):
    """A step of the maintenance failed; it is tried again at its next time, and the other steps go on."""

    step: str
    error: str
    retry_in: float


Subscriber = Callable[[Event], None]
Interest = Callable[[type[Event], str], bool]
"""Whether such an event of this task has a subscriber: without one it need not be made."""


def always(_kind: type[Event], _task: str) -> bool:
    """Every event has a subscriber."""
    return True


class Publisher:
    """Hands events to their subscribers. The log is the first of them, and most of its lines may be off."""

    def __init__(self, log: Subscriber, is_logged: Interest) -> None:
        self._subscribers = [log]
        self._is_logged = is_logged

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    def emit(self, event: Event) -> None:
        """Call every subscriber; one that fails harms neither the others nor the worker."""
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                logging.getLogger("reltask").exception("A subscriber failed on %s", type(event).__name__)

    def wanted(self, kind: type[Event], task: str) -> bool:
        """Whether such an event has a subscriber."""
        return len(self._subscribers) > 1 or self._is_logged(kind, task)
