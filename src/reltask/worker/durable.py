"""Durable calls of one run: what `ctx.step`, `ctx.sleep`, `ctx.wait_for` and `ctx.run` do.

    call ─► is its name recorded? ── yes ─► return the record, or raise its failure again: nothing runs
               │ no
               ├─ step, transact:   run the function ─► record ─► return the decoded record
               └─ sleep, wait, run: record what it waits for ─► park
                                                                  │
      every durable call under way is parked, for QUIET seconds ──┘
               ▼
      look: read wake_seq, signals and ends of children in one statement
               ├─ something has come ─► record it, let that call go on
               └─ nothing ─► suspend: cancel the body, end the run with the wake_seq that was seen

So nothing has to be declared, and `gather`, task groups and `create_task` work: a step beside a wait
ends and is recorded before the run is suspended. What is no durable call is cancelled with the body.

A wait that ends within SHORT seconds keeps its place: to suspend and to be claimed again costs more.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from msgspec import Struct

from reltask.errors import (
    AccessRefused,
    AmbiguousError,
    ArgumentsError,
    LockLost,
    ReltaskError,
    StepFailed,
    TaskSignal,
    TransientError,
    UsageError,
    WaitTimeout,
)
from reltask.model.arguments import Value, encode_json, value_of
from reltask.model.backoff import Backoff, one_off
from reltask.model.clock import Clock
from reltask.model.durable import (
    LONGEST_NAME,
    ChildEnd,
    SignalView,
    StepKind,
    StepRecord,
    StepState,
    StepView,
    Waits,
)
from reltask.model.job import LATEST, Suspension
from reltask.model.task import TaskKind
from reltask.producer.signal import Signal
from reltask.stores.store import Store
from reltask.worker.journal import Journal, Record, described, fingerprint_source, is_final, split_error
from reltask.worker.run import Run, StopReason

T = TypeVar("T")
QUIET = 0.005
"""Seconds for which every durable call must be parked before the run looks, and then suspends."""
SHORT = timedelta(seconds=1)
LOOKS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Pauses between looks for a parked call while other durable calls work."""
AWAY = (TransientError, AmbiguousError, AccessRefused)


class Suspended(BaseException):
    """Raised into a thread whose run is suspended. Let it propagate, as you let SystemExit."""


class StepOptions(Struct, frozen=True, kw_only=True):
    """What `ctx.using` says about a step."""

    attempts: int = 1
    backoff: Backoff | None = None
    timeout: timedelta | None = None


class Call(Struct, kw_only=True, eq=False):
    """One durable call under way."""

    name: str
    """As it is recorded."""
    base: str
    """As the body wrote it."""
    kind: StepKind
    order: int
    """Calls are numbered as they begin."""
    started_at: datetime
    fingerprint: str = ""
    attempt: int = 1

    def record(self, state: StepState, **fields: Any) -> StepRecord:
        """The record of this call."""
        return StepRecord(
            name=self.name,
            kind=self.kind,
            state=state,
            started_at=self.started_at,
            fingerprint=self.fingerprint,
            attempt=self.attempt,
            **fields,
        )


class Parked(Struct, kw_only=True, eq=False):
    """A call that waits."""

    call: Call
    woken: asyncio.Future[Any]
    wake_at: datetime | None
    signal: str | None = None
    children: int | None = None


class Durable:
    """The durable calls of one run. Lives on the worker's loop."""

    def __init__(
        self, run: Run, store: Store, record: Record, *, clock: Clock, rng: random.Random, value_limit: int
    ) -> None:
        self.journal = Journal(run, store, record)
        self._run = run
        self._store = store
        self._clock = clock
        self._rng = rng
        self._limit = value_limit
        self._loop = asyncio.get_running_loop()
        self._counts: Counter[str] = Counter()
        self._under_way: set[str] = set()
        self._working = 0
        self._parked: dict[str, Parked] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._looks = 0
        self._taken: set[tuple[str, str]] = set()
        self.changed: Callable[[str], None] = _ignore
        """Called with the name of a step whose function or arguments are not those that were recorded."""

    def now(self) -> datetime:
        """The database's time, as this worker estimates it."""
        return self._run.now(self._clock.monotonic())

    # Every call

    def enter(self, name: str, kind: StepKind) -> Call:
        """Begin a call: give it its recorded name, and refuse what cannot be told apart later."""
        run = self._run
        if run.suspension is not None:
            raise UsageError(
                "The body went on after it was suspended.",
                remedy="Do not catch asyncio.CancelledError or BaseException around calls of ctx without raising it.",
            )
        run.check()
        if run.has_ended:
            raise UsageError(f"ctx.{kind}({name!r}) was called after the body had ended.", remedy="Await it there.")
        check_name(name)
        if name in self._under_way:
            raise UsageError(
                f"Two calls named {name!r} are under way at once: their records could not be told apart.",
                remedy='Name them by what they are about: ctx.step(f"label:{id}", …).',
            )
        self._counts[name] += 1
        nth = self._counts[name]
        self.journal.begun += 1
        self._under_way.add(name)
        self._working += 1
        self._plan()
        recorded = name if nth == 1 else f"{name}#{nth}"
        return Call(name=recorded, base=name, kind=kind, order=self.journal.begun, started_at=self.now())

    def leave(self, call: Call) -> None:
        """The call has ended, however."""
        self._under_way.discard(call.base)
        self._working -= 1
        self._plan()

    async def found(self, call: Call) -> StepView | StepRecord | None:
        """What is recorded of a call. A record of another kind of call is refused."""
        step = await self._patiently(lambda: self.journal.find(call.name))
        if step is None:
            return None
        if step.kind is not call.kind:
            raise UsageError(
                f"{call.name!r} is recorded as a {step.kind}, and is a {call.kind} now.",
                remedy="A new meaning needs a new name; or: reltask steps forget JOB NAME.",
            )
        if call.fingerprint and step.fingerprint != call.fingerprint:
            self.changed(call.name)
        call.started_at = step.started_at
        if step.state is StepState.FAILED:
            raise _recorded_failure(step)
        return step

    async def _patiently(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask until the database answers, for as long as the run may go on."""
        for pause in (*LOOKS, *[LOOKS[-1]] * 10_000):
            try:
                return await ask()
            except AWAY:
                self._run.check()
                await self._clock.sleep(pause)
        raise LockLost("The database did not answer.")

    # Steps

    async def begin_step(self, call: Call) -> StepView | StepRecord | None:
        """Before a step's function runs: its record, if it need not. Waits until its next attempt is due."""
        step = await self.found(call)
        if step is None or is_final(step):
            return step
        call.attempt = step.attempt + 1
        await self._park(call, step.wake_at)
        return None

    async def end_step(self, call: Call, codec: Value, value: object) -> Any:
        """The function returned: record its value, and return what was recorded."""
        text = self.encode(codec, value)
        await self.journal.write(call.record(StepState.DONE, value=text), order=call.order)
        return codec.decode(text)

    async def fail_step(self, call: Call, options: StepOptions, error: Exception) -> None:
        """The function raised: return if it is to be tried again now, or raise StepFailed."""
        if call.attempt >= options.attempts:
            self.journal.fail(call.record(StepState.FAILED, error=described(error)))
            raise StepFailed(call.name, type(error).__name__, str(error)) from error
        delay = (options.backoff or one_off()).delay(call.attempt, rng=self._rng)
        wake_at = self.now() + delay
        if delay > SHORT:
            waiting = call.record(StepState.WAITING, error=described(error), wake_at=wake_at)
            await self.journal.write(waiting, order=call.order, progress=False)
        await self._park(call, wake_at)
        call.attempt += 1

    def encode(self, codec: Value, value: object) -> str:
        """The JSON to record. What cannot be recorded ends the job: to run the step again would repeat its effect."""
        try:
            return codec.encode(value, limit=self._limit)
        except ArgumentsError as error:
            self._run.fatal = str(error)
            raise

    # Waits

    async def sleep(self, name: str, length: timedelta) -> None:
        """Wait for a time, suspended unless it is short."""
        call = self.enter(name, StepKind.SLEEP)
        try:
            step = await self.found(call)
            if is_final(step):
                return
            wake_at = self._later(length) if step is None else step.wake_at
            if step is None and length > SHORT:
                await self.journal.write(call.record(StepState.WAITING, wake_at=wake_at), order=call.order)
            await self._park(call, wake_at)
            self.journal.note(call.record(StepState.DONE, wake_at=wake_at))
        finally:
            self.leave(call)

    async def wait_for(self, name: str, signal: Signal[T], timeout: timedelta | None) -> T:
        """Wait for a signal, and return its value; WaitTimeout if it does not come in time."""
        call = self.enter(name, StepKind.WAIT)
        try:
            step = await self.found(call)
            if step is not None and is_final(step):
                return signal.decode(step.value or "null")
            wake_at = None if timeout is None else self._later(timeout)
            if step is None:
                waiting = call.record(StepState.WAITING, wake_at=wake_at, signal=signal.name)
                await self.journal.write(waiting, order=call.order)
            else:
                wake_at = step.wake_at
            arrived: SignalView | None = await self._park(call, wake_at, signal=signal.name)
            if arrived is None:
                late = WaitTimeout(f"The signal {signal.name!r} did not come in time.")
                self.journal.fail(call.record(StepState.FAILED, signal=signal.name, error=described(late)))
                raise late
            value = signal.decode(arrived.value)
            done = call.record(StepState.DONE, signal=signal.name, signal_id=arrived.id, value=arrived.value)
            await self.journal.write(done, order=call.order)
            return value
        finally:
            self.leave(call)

    async def ends_of(self, call: Call, children: int) -> list[ChildEnd]:
        """Wait until all children of a recorded RUN have ended; record how, and return it in their order."""
        ends: list[ChildEnd] = await self._park(call, None, children=children)
        text = encode_json(ends).decode()
        await self.journal.write(call.record(StepState.DONE, value=text), order=call.order)
        return ends

    def _later(self, length: timedelta) -> datetime:
        return min(self.now() + length, LATEST - timedelta(days=1))

    # Parking and suspending

    async def _park(
        self, call: Call, wake_at: datetime | None, *, signal: str | None = None, children: int | None = None
    ) -> Any:
        """Wait until a look finds what this call waits for, or its time has come."""
        if signal is None and children is None and wake_at is not None and wake_at <= self.now():
            return None
        parked = Parked(call=call, woken=self._loop.create_future(), wake_at=wake_at, signal=signal, children=children)
        self._parked[call.name] = parked
        self._working -= 1
        self._looks = 0
        self._plan()
        try:
            return await parked.woken
        finally:
            del self._parked[call.name]
            self._working += 1
            self._plan()

    def _plan(self) -> None:
        """Look soon if every call is parked; now and then if others work; not at all if none is parked."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._parked or self._looking is not None or self._run.suspension is not None:
            return
        pause = QUIET if self._working == 0 else LOOKS[min(self._looks, len(LOOKS) - 1)]
        self._timer = self._loop.call_later(pause, self._begin_look)

    def _begin_look(self) -> None:
        self._timer = None
        self._looking = self._loop.create_task(self._look())

    async def _look(self) -> None:
        """Find what parked calls wait for. If there is nothing, and nothing else to do, suspend the run."""
        pause: float | None = None
        try:
            pause = await self._find_or_suspend()
        except AWAY:
            pause = LOOKS[0]
        except Exception as error:  # noqa: BLE001 - raised into the body, where it is reported
            for parked in list(self._parked.values()):
                if not parked.woken.done():
                    parked.woken.set_exception(error)
        finally:
            self._looking = None
            if pause is None:
                self._plan()
            elif self._parked and self._run.suspension is None:
                self._timer = self._loop.call_later(pause, self._begin_look)

    async def _find_or_suspend(self) -> float | None:
        """Returns after how many seconds to look again; None: as soon as that makes sense."""
        self._looks += 1
        if self._working == 0:
            await self.journal.write_caught()
        claim = self._run.claim
        waits = await self._store.read_waits(claim.job_id, claim.slot_no)
        if waits is None:
            self._run.stop(StopReason.LOST, "another worker has the claim")
            raise LockLost("The job is gone, or in another slot.")
        if self._wake(waits) or self._working or not self._parked or self._run.stop_reason is not None:
            return None
        wake_at = min((parked.wake_at for parked in self._parked.values() if parked.wake_at), default=None)
        if wake_at is not None and wake_at - self.now() <= SHORT:
            return max(0.001, (wake_at - self.now()).total_seconds())
        self._suspend(Suspension(hold=self._run.hold, seen=waits.wake_seq, wake_at=wake_at))
        return None

    def _wake(self, waits: Waits) -> bool:
        """Let go on what has come, in the order of the calls. Returns whether anything has."""
        now, woken = self.now(), False
        for parked in sorted(self._parked.values(), key=lambda parked: parked.call.order):
            if parked.woken.done():
                woken = True
                continue
            come = self._come_for(parked, waits)
            if come is not None or (parked.wake_at is not None and parked.wake_at <= now):
                parked.woken.set_result(come)
                woken = True
        return woken

    def _come_for(self, parked: Parked, waits: Waits) -> SignalView | list[ChildEnd] | None:
        if parked.children is not None:
            ends = sorted((end for end in waits.ends if end.step == parked.call.name), key=lambda end: end.nth)
            return ends if len(ends) >= parked.children else None
        for signal in waits.signals:
            if signal.name == parked.signal and (signal.name, signal.id) not in self._taken:
                self._taken.add((signal.name, signal.id))
                return signal
        return None

    def _suspend(self, suspension: Suspension) -> None:
        """End the body. Its finally blocks run; durable calls in them are refused."""
        self._run.suspend(suspension)
        for parked in list(self._parked.values()):
            if self._run.task.kind is TaskKind.THREAD:
                parked.woken.set_exception(Suspended())
            else:
                parked.woken.cancel()

    def close(self) -> None:
        """The body has ended: look no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()


def is_failure(error: BaseException) -> bool:
    """Whether a step's exception is a failure of the step, and not about the run as a whole."""
    return isinstance(error, Exception) and not isinstance(error, TaskSignal | LockLost | UsageError)


def check_name(name: object) -> None:
    """Refuse a name that could not be recorded, or be mistaken for a repeated one."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"A durable call needs a name, not {name!r}.", remedy='Write ctx.step("charge", charge, …).')
    if len(name) > LONGEST_NAME:
        raise UsageError(
            f"The name {name[:40]!r}… has {len(name)} characters.", remedy=f"Write at most {LONGEST_NAME}."
        )
    if "#" in name or not name.isprintable():
        raise UsageError(f"The name {name!r} contains # or a control character.", remedy="Use other characters.")


def fingerprint(function: object, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """A hash of function and arguments; of arguments that JSON cannot hold, only of their types."""
    source = fingerprint_source(function)
    try:
        given = encode_json([args, kwargs])
    except Exception:  # noqa: BLE001 - a step's arguments may be anything: they are not stored
        given = repr([type(one).__name__ for one in (*args, *kwargs.values())]).encode()
    return hashlib.blake2b(source.encode() + b"\0" + given, digest_size=8).hexdigest()


def codec_of(function: Callable[..., Any], name: str) -> Value:
    """How a step's value is recorded. Made before the function runs: a bad annotation must not cost an effect."""
    return value_of(getattr(function, "function", function), label=f"Step {name!r}")


def _recorded_failure(step: StepView | StepRecord) -> ReltaskError:
    kind, message = split_error(step.error)
    if step.kind is StepKind.WAIT:
        return WaitTimeout(message)
    return StepFailed(step.name, kind, message)


def _ignore(_: str) -> None:
    """The default callback."""
