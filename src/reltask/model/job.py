"""Jobs, claims and runs as values, and the table of their transitions.

                     claim                     complete (one-off) ──────► gone
          ┌──────────────────────────┐        ▲
          │                          ▼        │ complete (recurring): next slot
        READY ◄─────────────────── CLAIMED ───┴──────────────────────────► READY
          ▲    fail, release,        │  ▲
          │    reclaim               │  └── claim ─── SUSPENDED ◄── suspend (a durable function that waits)
          │                          │
          │                          │ fail or reclaim at the last attempt
          │                          ▼
          └───────── retry ──────── DEAD ── discard ──► gone

    READY, SUSPENDED, PAUSED ── cancel ──► gone (one-off); else the slot is ended without a body by the next claim

Every arrow is one transaction. Every arrow that leaves CLAIMED names the owner and the fence in its
WHERE clause and says whether it won; `reclaim` names the fence that it saw expire. The fence grows by
one at each claim, so a worker that was paused past its lock timeout presents an old fence, and its
write changes nothing.

These values are exchanged between the worker and the stores; they have no behaviour.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9000, 1, 1, tzinfo=UTC)
"""Times from EARLIEST to before LATEST can be stored: the tables' constraints refuse others. In any
zone, and with the longest duration added, they are still valid in Python. A store reads a time that
Python cannot represent as LATEST, or as UNREADABLE if it is too early."""
UNREADABLE = EARLIEST - timedelta(microseconds=1)


class State(StrEnum):
    """The state of a job, derived from its row."""

    READY = "ready"
    CLAIMED = "claimed"
    SUSPENDED = "suspended"
    """A durable function that waits: for a time, a signal or its children."""
    PAUSED = "paused"
    DEAD = "dead"
    GONE = "gone"


class Verb(StrEnum):
    """What can be done to a job."""

    CLAIM = "claim"
    HEARTBEAT = "heartbeat"
    COMPLETE = "complete"
    FAIL = "fail"
    RELEASE = "release"
    SUSPEND = "suspend"
    RECLAIM = "reclaim"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    DISCARD = "discard"
    CANCEL = "cancel"


class Cancellation(StrEnum):
    """What `cancel` found, and did."""

    CANCELLED = "cancelled"
    """The job has ended, and its last ledger row says so."""
    STOPPING = "stopping"
    """Its slot is being ended: its body is asked to stop, or, if none runs, a worker ends it without one."""
    ENDED = "ended"
    """It had ended before, otherwise: it has succeeded, was discarded, or is dead."""


class Outcome(StrEnum):
    """How a run ended: one ledger row each."""

    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    FAILED = "failed"
    SNOOZED = "snoozed"
    SUSPENDED = "suspended"
    RELEASED = "released"
    ABANDONED = "abandoned"
    LOST = "lost"
    DISCARDED = "discarded"

    @property
    def ends_slot(self) -> bool:
        """Whether the slot is over; a constraint allows one ledger row with such an outcome per slot."""
        return self in SLOT_ENDINGS


SLOT_ENDINGS = (Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.SKIPPED, Outcome.DISCARDED)
"""A tuple, because it is searched by identity; a set would compute an enum's hash in Python at every run."""


class Transition(NamedTuple):
    """The states that a verb may lead to, and what it does to the counters."""

    to: frozenset[State]
    fence: int = 0
    attempt: int = 0
    ends_slot: bool = False


def _to(*states: State) -> frozenset[State]:
    return frozenset(states)


TRANSITIONS: dict[tuple[State, Verb], Transition] = {
    (State.READY, Verb.CLAIM): Transition(_to(State.CLAIMED), fence=+1, attempt=+1),
    (State.CLAIMED, Verb.HEARTBEAT): Transition(_to(State.CLAIMED)),
    (State.CLAIMED, Verb.COMPLETE): Transition(_to(State.READY, State.PAUSED, State.GONE), ends_slot=True),
    (State.CLAIMED, Verb.FAIL): Transition(_to(State.READY, State.PAUSED, State.DEAD)),
    (State.CLAIMED, Verb.RELEASE): Transition(_to(State.READY, State.PAUSED, State.DEAD), attempt=-1),
    (State.CLAIMED, Verb.SUSPEND): Transition(_to(State.SUSPENDED, State.PAUSED), attempt=-1),
    (State.SUSPENDED, Verb.CLAIM): Transition(_to(State.CLAIMED), fence=+1, attempt=+1),
    (State.SUSPENDED, Verb.PAUSE): Transition(_to(State.PAUSED)),
    (State.SUSPENDED, Verb.DISCARD): Transition(_to(State.GONE), fence=+1, ends_slot=True),
    (State.CLAIMED, Verb.RECLAIM): Transition(_to(State.READY, State.PAUSED, State.DEAD)),
    (State.CLAIMED, Verb.PAUSE): Transition(_to(State.CLAIMED)),
    (State.CLAIMED, Verb.RESUME): Transition(_to(State.CLAIMED)),
    (State.READY, Verb.PAUSE): Transition(_to(State.PAUSED)),
    (State.PAUSED, Verb.RESUME): Transition(_to(State.READY, State.SUSPENDED)),
    (State.READY, Verb.DISCARD): Transition(_to(State.GONE), fence=+1, ends_slot=True),
    (State.PAUSED, Verb.DISCARD): Transition(_to(State.GONE), fence=+1, ends_slot=True),
    (State.DEAD, Verb.DISCARD): Transition(_to(State.GONE), fence=+1, ends_slot=True),
    (State.DEAD, Verb.RETRY): Transition(_to(State.READY, State.PAUSED)),
    (State.READY, Verb.CANCEL): Transition(_to(State.GONE, State.READY), fence=+1, ends_slot=True),
    (State.SUSPENDED, Verb.CANCEL): Transition(_to(State.GONE, State.SUSPENDED), fence=+1, ends_slot=True),
    (State.PAUSED, Verb.CANCEL): Transition(_to(State.GONE, State.PAUSED), fence=+1, ends_slot=True),
    (State.CLAIMED, Verb.CANCEL): Transition(_to(State.CLAIMED)),
}
"""All transitions. A recurring job that is cancelled keeps its slot until a worker has claimed and ended it.

A verb that is not listed for a state changes nothing and reports that it did not win."""


class Hold(Struct, frozen=True, order=True, gc=False, cache_hash=True):
    """What a run sends with every write, in addition to its worker: the job and the fence of its claim."""

    job_id: UUID
    fence: int


class Parent(Struct, frozen=True, kw_only=True, gc=False):
    """The step of a durable function that waits for a job."""

    job_id: UUID
    slot_no: int
    step: str
    nth: int


class Unique(Struct, frozen=True, kw_only=True, gc=False):
    """A key that only one job of a task has at a time: see `enqueue_unique.sql`."""

    key: str
    """Hash of arguments."""
    keep: timedelta | None = None
    """How long it stays taken at least, from the enqueue on, also after the job's end."""
    until_start: bool = False
    """Whether it is free as soon as the job's run begins."""


class NewJob(Struct, frozen=True, kw_only=True, gc=False):
    """A job to insert. The client makes the id, so that a repeated insert does not create a second job."""

    id: UUID
    task: str
    args: str = "{}"
    """JSON object by parameter name."""
    queue: str = "default"
    priority: int = 5
    """0 (first) to 9 (last)."""
    key: str | None = None
    """Names one of several schedules, or a unique one-off, of a task; unique per task while the row exists."""
    schedule: str | None = None
    """JSON of the schedule (`schedule.encode`); None for a one-off."""
    run_at: datetime | None = None
    """Nominal time of the first slot; None without a delay means the database's current time."""
    delay: timedelta | None = None
    """Counted from the database's current time."""
    max_attempts: int | None = None
    """None: no limit."""
    lock_timeout: timedelta | None = None
    """None: the claiming worker's setting."""
    declaration: str | None = None
    """Hash of the declaration in code, for recurring jobs."""
    app_version: str | None = None
    parent: Parent | None = None
    """The step that waits for this job's end; None: none does."""
    headers: str | None = None
    """JSON object: what travels with the job beside its arguments; None: nothing."""
    limits: tuple[str, ...] = ()
    """The keys of its limits; it waits at the first one. See `model/limit.py`."""
    unique: Unique | None = None
    """None: any number of such jobs may be there."""


class Declared(Struct, frozen=True, kw_only=True):
    """A recurring job's definition as stored, read before it is declared again."""

    id: UUID
    task: str
    key: str | None
    schedule: str | None
    declaration: str | None
    app_version: str | None
    next_run_time: datetime
    now: datetime


class ClaimRequest(Struct, frozen=True, kw_only=True):
    """Ask for up to `limit` due jobs."""

    worker: str
    token: UUID
    """Stored in the rows, to recognise a claim whose answer was lost."""
    queues: list[str]
    tasks: list[str]
    limit: int
    lock_timeout: timedelta
    """For rows without a lock timeout of their own."""
    isolated: bool
    """Whether one isolated job may be among them: the worker runs none at present."""
    alive_for: timedelta
    """How long the worker counts as alive after this statement."""
    oldest: int = 0
    """How many of them go to the lane whose first job has waited longest, whatever its priority."""
    counts: bool = False
    """Whether the answer says how many workers are idle; if nothing is claimed, this one is idle, too."""


class Claim(Struct, frozen=True, gc=False):
    """One claimed slot: all that a worker needs to run it and to record its outcome."""

    job_id: UUID
    fence: int
    task: str
    key: str | None
    args: str
    queue: str
    priority: int
    schedule: str | None
    slot_no: int
    nominal: datetime
    """The slot's nominal time: `next_run_time`."""
    due_at: datetime
    slot_started_at: datetime
    """Database time of the slot's first claim: what `every` counts from."""
    locked_at: datetime
    attempt: int
    max_attempts: int | None
    lock_timeout: timedelta
    """As copied into this claim."""
    isolated: bool
    """Its previous runs were lost: it runs alone."""
    steps: int = 0
    """How many steps of this slot are recorded; 0: there is nothing to read."""
    has_parent: bool = False
    """Whether a step of another job waits for its end."""
    progress: str | None = None
    """JSON: what an earlier run of this slot has published last."""
    headers: str | None = None
    """JSON object, as it was enqueued."""
    cancelled: bool = False
    """Whether the slot is cancelled: it is ended without a body."""

    @property
    def hold(self) -> Hold:
        return Hold(self.job_id, self.fence)

    @property
    def idempotency_key(self) -> str:
        """Equal for all runs of this slot, different for every other slot."""
        return f"{self.job_id}:{self.slot_no}"


class Fleet(Struct, frozen=True):
    """This worker's place among the idle ones: those that looked in vain, and have not filled their places since.

    Its peers are those that serve the same queues and know the same tasks: they can take what it can.
    """

    rank: int = 0
    """How many of its idle peers come before it, by name."""
    size: int = 1
    """How many they are, with this one."""
    idle: int = 1
    """How many workers are idle, whatever they serve, with this one."""


class ClaimAnswer(Struct, frozen=True, kw_only=True):
    """What was claimed, and when the next claim is useful."""

    claims: list[Claim]
    now: datetime
    """The database's time of the statement."""
    next_due: datetime | None
    """The earliest due time of a job that this worker could run; not later than `now` if another claim locks it."""
    next_expiry: datetime | None
    """The earliest time at which a lock of any worker expires."""
    marked: bool = False
    """Whether there are marks to fold."""
    limited_at: datetime | None = None
    """When `claim_limited` is worth asking: the first mark of a limit that this worker may take."""
    fleet: Fleet | None = None
    """None: not asked for, or something was claimed."""


class Overdue(Struct, frozen=True, kw_only=True):
    """What workers should have taken by now."""

    lanes: int
    """Combinations of queue, task and priority whose first job is overdue and unclaimed."""
    oldest: datetime | None
    newest: datetime | None
    """The earliest and the latest due time of those first jobs."""
    marked: bool
    """Whether there are marks to fold."""
    expired: bool
    """Whether a lock has ended."""


class BeatAnswer(Struct, frozen=True, kw_only=True):
    """Which claims were renewed, and which rows are claimed for this worker without its knowledge."""

    renewed: frozenset[Hold]
    """Those that were named, and the rows of claims that wait for their answer."""
    strays: list[Hold]
    cancelled: frozenset[Hold] = frozenset()
    """Those of the renewed ones whose slot is cancelled."""


class Completion(Struct, frozen=True, gc=False):
    """The end of a slot: succeeded, cancelled or skipped."""

    hold: Hold
    outcome: Outcome = Outcome.SUCCEEDED
    result: str | None = None
    """JSON."""
    error: str | None = None
    next_run_time: datetime | None = None
    """Nominal time of the next slot; None: the job was a one-off and is removed."""
    skipped: tuple[datetime, ...] = ()
    """Nominal times of the slots skipped between this one and the next; each becomes a ledger row."""
    args: str | None = None
    """The next slot's arguments, JSON; None: the same as this one's."""
    has_parent: bool = False
    """As in the claim: a step of another job learns of this end."""
    keeps_args: bool = True
    """Whether the ledger keeps arguments and headers of a job that ends: `history.arguments`."""
    has_limits: bool = False
    """Whether the claim took places of limits, so that a statement may free them together."""


class Failure(Struct, frozen=True, kw_only=True, gc=False):
    """A run that raised: the slot is tried again after `delay`; after its last attempt the job is dead."""

    hold: Hold
    error: str
    delay: timedelta
    final: bool = False
    """Whether the job is dead now, whatever its attempts: its row cannot be run."""
    patient: bool = False
    """Whether a cancelled job waits for `delay`, too: its end could not be written, and would fail again at once."""


class Release(Struct, frozen=True, kw_only=True, gc=False):
    """A run released before its end: the slot stays, and the attempt does not count."""

    hold: Hold
    outcome: Outcome
    error: str | None = None
    delay: timedelta | None = None
    counted: bool = False
    """The attempt counts all the same, and the job is dead at its last: it may have starved its worker."""


class Suspension(Struct, frozen=True, kw_only=True):
    """The end of a run that waits: lock cleared, slot and steps kept, attempt given back."""

    hold: Hold
    seen: int
    """The `wake_seq` that was read together with all that it waits for."""
    wake_at: datetime | None
    """The earliest wake time of its waiting steps; None: only a mark wakes it."""


Settlement = Completion | Failure | Release | Suspension
"""How a run ends its claim; each names the claim in `hold`."""


class Settled(Struct, frozen=True, gc=False):
    """A settlement that the database accepted."""

    hold: Hold
    dead: bool = False


class Reclaimed(Struct, frozen=True, kw_only=True):
    """An expired claim that was taken away from its owner."""

    job_id: UUID
    fence: int
    task: str
    slot_no: int
    worker: str
    dead: bool


class Orphans(Struct, frozen=True, kw_only=True):
    """Children whose parent has ended."""

    ended: list[UUID]
    stopping: list[UUID]
    """Those that run, and are cancelled now."""


class WorkerRecord(Struct, frozen=True, kw_only=True):
    """A worker's row, as it registers itself."""

    id: str
    host: str
    pid: int
    version: str
    app_version: str | None
    queues: list[str]
    tasks: list[str]
    concurrency: int
    alive_for: timedelta
