"""What happens in a worker, as typed values. Logs, metrics and tests subscribe to them.

No event carries arguments, results or secrets, because events are written to logs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from msgspec import Struct


class Event(Struct, frozen=True, kw_only=True, gc=False):
    """The base class: every event names its worker."""

    worker: str


class RunEvent(Event, frozen=True, kw_only=True):
    """Something that happened to one run."""

    task: str
    job_id: UUID
    slot_no: int
    fence: int
    queue: str = ""
    """Empty where it is not known: of a run that another worker lost."""


class WorkerStarted(Event, frozen=True, kw_only=True):
    """A worker has registered itself and begins to claim."""

    queues: list[str]
    tasks: list[str]
    concurrency: int


class WorkerStopping(Event, frozen=True, kw_only=True):
    """A worker claims no more jobs; running bodies may finish within `grace` seconds."""

    running: int
    grace: float


class WorkerStopped(Event, frozen=True, kw_only=True):
    """A worker has stopped and has released its claims."""

    unsettled: int
    """Runs whose outcome could not be recorded: their locks will expire."""


class JobsClaimed(Event, frozen=True, kw_only=True):
    """One claim statement took jobs."""

    count: int
    limit: int


class Idle(Event, frozen=True, kw_only=True):
    """Nothing is due; the worker sleeps for `seconds`, or until a signal."""

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
    """Whether the job has a schedule, which stops if the job is dead."""
    seconds: float = 0.0


class RunEnded(RunEvent, frozen=True, kw_only=True):
    """Another outcome has been committed: cancelled, skipped, snoozed, suspended, released or abandoned."""

    outcome: str
    reason: str
    dead: bool = False
    """Whether that was the last attempt: only of a run that was abandoned because it starved its worker."""
    seconds: float = 0.0


class StepsRecorded(RunEvent, frozen=True, kw_only=True):
    """A durable function's steps have been committed."""

    kinds: list[str]
    """Of each step that ended: step, transact, sleep, wait, run or start."""


class StepsNotAsked(RunEvent, frozen=True, kw_only=True):
    """A durable function ended without asking for steps that earlier runs of the slot have recorded."""

    steps: list[str]


class SignalsNotReceived(RunEvent, frozen=True, kw_only=True):
    """A durable function that receives signals ended its slot with `Again` before it had received all of them."""

    signals: list[str]
    """Their names."""


class StepChanged(RunEvent, frozen=True, kw_only=True):
    """A recorded step was asked for with another function or other arguments; the record was returned."""

    step: str


class EnqueuedOutsideStep(RunEvent, frozen=True, kw_only=True):
    """The body of a durable function enqueued or signalled outside of a step: it does so again at each resume."""

    what: str
    """What it did, in words."""


class RunAbandoned(RunEvent, frozen=True, kw_only=True):
    """The worker can no longer be sure of its claim, and stops the body."""

    reason: str


class BodyStuck(RunEvent, frozen=True, kw_only=True):
    """A body does not stop: its place stays taken and its lock is left to expire."""

    seconds: float


class BodyEndedLate(RunEvent, frozen=True, kw_only=True):
    """A body that did not stop in time has ended after all."""


class LateWriteRefused(RunEvent, frozen=True, kw_only=True):
    """The database refused an outcome, because the run had lost its claim."""

    outcome: str


class ResultNotStored(RunEvent, frozen=True, kw_only=True):
    """The slot succeeded, but its return value could not be stored."""

    reason: str


class ErrorAfterCompletion(RunEvent, frozen=True, kw_only=True):
    """A body raised after its transaction had completed the slot: the slot stays completed."""

    error: str


class HeartbeatFailed(Event, frozen=True, kw_only=True):
    """A whole interval passed without a successful heartbeat."""

    failures: int
    limit: int
    error: str


class HeartbeatLate(Event, frozen=True, kw_only=True):
    """A heartbeat was sent later than planned: the process was paused or short of CPU time."""

    seconds: float


class JobReclaimed(RunEvent, frozen=True, kw_only=True):
    """This worker reclaimed a job whose lock had expired."""

    owner: str
    dead: bool


class StrayReleased(Event, frozen=True, kw_only=True):
    """The worker found a claim of its own whose answer had been lost, and released it."""

    job_id: UUID
    fence: int


class OutcomeHeld(Event, frozen=True, kw_only=True):
    """A run has ended, but another session has locked its job's row: its outcome waits until that lets go."""

    job_id: UUID
    fence: int


class DatabaseUnavailable(Event, frozen=True, kw_only=True):
    """A statement failed; the worker waits and tries again."""

    verb: str
    error: str
    retry_in: float


class DatabaseBack(Event, frozen=True, kw_only=True):
    """The database answers again, after an outage of `seconds`."""

    seconds: float


class ListenerLost(Event, frozen=True, kw_only=True):
    """The connection that receives the database's signals was lost; the worker looks for work and listens again."""

    reason: str


class CircuitChanged(Event, frozen=True, kw_only=True):
    """The breaker in front of the database opened, half-opened or closed."""

    state: str


class TasksUnknown(Event, frozen=True, kw_only=True):
    """Jobs are due whose task no live worker knows."""

    counts: dict[str, int]


class ScheduleLeftOver(Event, frozen=True, kw_only=True):
    """A recurring job still runs although the code does not declare it, or declares it under another name."""

    task: str
    key: str | None
    job_id: UUID
    beside: str | None
    """The task's declared name, under which it also recurs, so that it runs twice; None: no longer declared."""


class ScheduleBlocked(Event, frozen=True, kw_only=True):
    """A declared schedule cannot be created yet, because a one-off job has its key."""

    task: str
    key: str | None
    job_id: UUID


class DeclarationIgnored(Event, frozen=True, kw_only=True):
    """A recurring job keeps the declaration of a newer version of the app; this worker's declaration differs."""

    task: str
    key: str | None
    job_id: UUID
    version: str | None
    newer: str | None


class LeaseEvent(Event, frozen=True, kw_only=True):
    """Something that happened to one term of a lease. `worker` is the lease's holder, which need not be a worker."""

    lease: str
    term: int


class LeaseAcquired(LeaseEvent, frozen=True, kw_only=True):
    """This process holds the lease."""


class LeaseLost(LeaseEvent, frozen=True, kw_only=True):
    """This process has lost the lease; it did not resign."""

    reason: str


class LeaseResigned(LeaseEvent, frozen=True, kw_only=True):
    """This process resigned the lease: another one can acquire it at once."""


class LeaseLeftToExpire(LeaseEvent, frozen=True, kw_only=True):
    """This process could not resign the lease: another one can acquire it when it expires."""

    error: str


class WorkerDied(Event, frozen=True, kw_only=True):
    """This worker marked another one as dead, because that one did not refresh its row in time."""

    who: str


class RunsPruned(Event, frozen=True, kw_only=True):
    """A batch of the ledger's oldest rows has been removed."""

    count: int


class MaintenanceFailed(Event, frozen=True, kw_only=True):
    """A maintenance step failed; it is retried in `retry_in` seconds, and the other steps go on."""

    step: str
    error: str
    retry_in: float


Subscriber = Callable[[Event], None]
Interest = Callable[[type[Event], str], bool]
"""Whether such an event of this task has a subscriber: without one it need not be made."""


def always(_kind: type[Event], _task: str) -> bool:
    """Every event has a subscriber."""
    return True
