"""The recorded steps of one run: read once, written in groups.

    ctx call ends ─► ┐
    ctx call ends ─► ├─ unsent ──► one Recording per run ──► recorder ──► one statement for all runs ──► answers
    ctx call ends ─► ┘    ▲                                                                               │
                          └────────────── calls that end meanwhile go with the next one ──────────────────┘

A call counts as recorded when the answer is there. A recording that is refused means that another
worker has the claim: the body is stopped.

A failure that the body may catch is kept aside. A later call shows that the body went on:

    begun by the task in which the failure was raised ─► caught: the failure is recorded with that call
    by another task, in the same turn of the loop, or
    by one that was in a call of its own then ─────────► a sibling, as in `gather`: neither it nor its later calls show
                                                         anything; the body's own task is none
    by another task, later ────────────────────────────► wait TURNS turns: if the body has not ended by then, caught

A `def` body may make calls from threads of its own, which have no turns: there a failure is caught
when the same work of a thread, or the body's own thread, begins another call.

If the body lets it through, nothing is recorded, and the next attempt runs the step again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import partial
from types import FrameType
from typing import Any

from msgspec import Struct, field

from reltask import events
from reltask.errors import LockLost, UsageError
from reltask.model.clock import Clock
from reltask.model.durable import Recording, StepKind, StepRecord, StepState, StepView
from reltask.model.job import Hold, Settled
from reltask.model.task import TaskKind
from reltask.stores.store import Store
from reltask.worker.run import Run, StopReason
from reltask.worker.settle import Settler, Waiting

TURNS = 12
"""Turns of the loop in which a failure reaches the body, through nested task groups too."""
LOST = "another worker has the claim"
LONGEST_ERROR = 10_000
"""Characters of a failure's record."""
Caller = asyncio.Future[Any] | FrameType | None
"""What makes a call: a task of the loop; of a `def` body the work of one of its threads, None: the body itself."""
calling: ContextVar[FrameType | None] = ContextVar("reltask_calling", default=None)
"""What makes the calls of a `def` body: set on the loop, by `OnWorkersLoop`."""
Record = Callable[[Recording, Callable[[bool], None]], None]
"""Writes a recording, and calls back with whether the claim still held."""


class RaisedFailure(Struct, eq=False):
    """A failure that was raised into the body, and not recorded yet."""

    record: StepRecord
    caller: Caller
    """In which it was raised."""
    siblings: set[Caller] = field(default_factory=set)
    """Tasks that were in calls of their own when it was raised, or began one in that turn: none has caught it."""
    age: int = 0
    """Turns of the loop since then, up to TURNS."""
    is_caught: bool = False
    """Whether a later call has begun."""

    @property
    def is_certain(self) -> bool:
        """Whether it is to be recorded."""
        return self.is_caught and self.age >= TURNS


class Journal:
    """What the current slot has recorded, as one run reads and writes it."""

    def __init__(self, run: Run, store: Store, record: Record) -> None:
        self._run = run
        self._store = store
        self._record = record
        self._loop = asyncio.get_running_loop()
        self._is_thread = run.task.kind is TaskKind.THREAD
        self._known: dict[str, StepView | StepRecord] = {}
        self._unasked: set[str] = set()
        self._is_loaded = run.claim.steps == 0
        self._loading: asyncio.Task[None] | None = None
        self._has_gone_on = False
        self._unsent: list[StepRecord] = []
        self._progress = False
        self._waiting: list[asyncio.Future[None]] = []
        self._sent: list[asyncio.Future[None]] = []
        self._is_closed = False
        self._on_written: Callable[[], object] | None = None
        self._is_sending = False
        self._is_planned = False
        self._failures: list[RaisedFailure] = []
        self._calling: set[Caller] = set()
        """Those that wait for a call."""
        self.recorded: Callable[[Recording], object] = _ignore
        """Called with what was committed."""

    @property
    def replaying(self) -> bool:
        """Whether the body only repeats what an earlier run has recorded: no call so far was new, and some are left."""
        return not self._has_gone_on and (not self._is_loaded or bool(self._unasked))

    async def find(self, name: str) -> StepView | StepRecord | None:
        """The record of a step, or None. The first call reads all records of the slot, if there are any."""
        if not self._is_loaded:
            if self._loading is None:
                self._loading = self._loop.create_task(self._load())
            await asyncio.shield(self._loading)
        self._unasked.discard(name)
        step = self._known.get(name)
        self._has_gone_on = self._has_gone_on or not is_final(step)
        return step

    async def _load(self) -> None:
        claim = self._run.claim
        try:
            steps = await self._store.read_steps(claim.job_id, claim.slot_no)
        finally:
            self._loading = None  # after an error the next call reads again
        self._known = {step.name: step for step in steps}
        self._unasked = set(self._known)
        self._is_loaded = True

    def never_asked(self) -> list[str]:
        """Recorded steps that this run has not asked for."""
        return sorted(self._unasked)

    def has_waited(self) -> bool:
        """Whether the slot has recorded a wait for a signal."""
        return any(step.kind is StepKind.WAIT for step in self._known.values())

    # Writing

    async def write(self, record: StepRecord, *, progress: bool = True) -> None:
        """Record a step, with the failures that were caught before; return when it is recorded."""
        await self._write_all([record, *self._take_caught()], progress=progress)

    @property
    def has_caught(self) -> bool:
        """Whether the body has caught failures that are not recorded yet."""
        return any(failure.is_certain for failure in self._failures)

    async def write_caught(self) -> None:
        """Record the failures that the body has caught, before it is suspended."""
        await self._write_all(self._take_caught(), progress=True)

    async def _write_all(self, records: Iterable[StepRecord], *, progress: bool) -> None:
        """Record steps; return when they are recorded, or raise LockLost."""
        if self._is_closed:
            raise UsageError("The step ended after the body had ended: it was not recorded.", remedy="Await it there.")
        self._unsent += records
        self._progress = self._progress or progress
        answered: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(answered)
        self._send_soon()
        await answered

    # Failures

    def begin(self) -> Caller:
        """A call begins: it shows that the body has gone on after earlier failures. Returns what makes it."""
        caller = self._caller()
        self._calling.add(caller)
        for failure in self._failures:
            if failure.caller is caller or (self._is_thread and caller is None):
                failure.age, failure.is_caught = TURNS, True
            elif self._is_thread:
                pass
            elif failure.age == 0 and caller is not self._run.ending:
                failure.siblings.add(caller)
            elif caller not in failure.siblings:
                failure.is_caught = failure.is_caught or failure.age > 0
        return caller

    def end(self, caller: Caller) -> None:
        """Its call has ended."""
        self._calling.discard(caller)

    async def until_certain(self) -> None:
        """Wait until failures that were caught by another task, so it seems, would have ended the body."""
        while any(f.is_caught and not f.is_certain for f in self._failures):  # noqa: ASYNC110 - turns are what counts
            await asyncio.sleep(0)

    def fail(self, record: StepRecord) -> None:
        """Keep a failure aside, until a later call shows that the body has caught it."""
        caller = self._caller()
        failure = RaisedFailure(record, caller, self._calling - {caller, self._run.ending})
        self._failures.append(failure)
        self._loop.call_soon(self._grow, failure)

    def note(self, record: StepRecord) -> None:
        """Record this with the next call, if there is one: it only completes the picture."""
        self._failures.append(RaisedFailure(record, None, age=TURNS, is_caught=True))

    def _grow(self, failure: RaisedFailure) -> None:
        failure.age += 1
        if failure.age < TURNS:
            self._loop.call_soon(self._grow, failure)

    def _caller(self) -> Caller:
        return calling.get() if self._is_thread else asyncio.current_task()

    def _take_caught(self) -> list[StepRecord]:
        caught = [failure.record for failure in self._failures if failure.is_certain]
        self._failures = [failure for failure in self._failures if not failure.is_certain]
        return caught

    # In a transaction

    def in_transaction(self, record: StepRecord) -> Recording:
        """What a transaction records as its last statement, with the failures that were caught before."""
        caught = [failure.record for failure in self._failures if failure.is_certain]
        return Recording(hold=self._run.hold, steps=(record, *caught))

    def written(self, recording: Recording) -> None:
        """A recording has been committed: by the recorder, or by a transaction."""
        self._run.has_progressed = self._run.has_progressed or recording.progress
        for step in recording.steps:
            self._known[step.name] = step
        recorded = {step.name for step in recording.steps}
        self._failures = [failure for failure in self._failures if failure.record.name not in recorded]
        self.recorded(recording)

    # Ending

    def close(self, written: Callable[[], object]) -> bool:
        """The body has ended. True: all is recorded; else `written` is called when it is."""
        self._is_closed = True
        if not (self._is_planned or self._is_sending):
            return True
        self._on_written = written
        return False

    def give_up(self) -> None:
        """The worker shuts down without an answer of the database: no thread waits for it any longer."""
        for one in (*self._sent, *self._waiting):
            if not one.done():
                one.set_exception(LockLost("The step was not recorded: the worker has shut down."))

    def _send_soon(self) -> None:
        """Send in the next turn of the loop, together with all that is written in this one."""
        if not self._is_planned and not self._is_sending:
            self._is_planned = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._is_planned, self._is_sending = False, True
        recording = Recording(hold=self._run.hold, steps=tuple(self._unsent), progress=self._progress)
        self._sent, self._waiting, self._unsent, self._progress = self._waiting, [], [], False
        self._record(recording, partial(self._answered, recording))

    def _answered(self, recording: Recording, accepted: bool) -> None:
        self._is_sending = False
        sent, self._sent = self._sent, []
        if accepted:
            self.written(recording)
        else:
            self._run.stop(StopReason.LOST, LOST)
        for one in sent:
            if one.done():  # its call was cancelled
                continue
            if accepted:
                one.set_result(None)
            else:
                one.set_exception(LockLost(f"The step was not recorded: {LOST}."))
        if self._unsent:
            self._send_soon()
        elif self._on_written is not None:
            self._on_written()


def is_final(step: StepView | StepRecord | None) -> bool:
    """Whether a step has ended: its record will not change."""
    return step is not None and step.state is not StepState.WAITING


def described(error: BaseException) -> str:
    """`Kind: message`, as a step's record holds it."""
    return f"{type(error).__name__}: {error}".replace("\x00", "\\x00")[:LONGEST_ERROR]


def split_error(text: str | None) -> tuple[str, str]:
    """Kind and message of a recorded failure."""
    kind, _, message = (text or "").partition(": ")
    return kind, message


def fingerprint_source(function: Any) -> str:
    """The name by which a replay recognises a step's function."""
    while isinstance(function, partial):
        function = function.func
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"


def _ignore(_recording: Recording) -> None:
    """The default: no caller wants to know."""


def step_recorder(
    store: Store, *, worker: str, clock: Clock, emit: events.Subscriber
) -> Settler[Callable[[bool], None]]:
    """What writes the steps of all runs of a worker, in groups."""
    return Settler(store, worker=worker, clock=clock, emit=emit, answered=_answer_each, held=_ignore_held)


def _answer_each(answers: Sequence[tuple[Waiting[Callable[[bool], None]], Settled | None]]) -> None:
    """Tell each run whether its steps are recorded."""
    for waiting, settled in answers:
        waiting.end(settled is not None)


def _ignore_held(_: Hold) -> None:
    """A recording that waits for its row keeps its place: its body runs."""
