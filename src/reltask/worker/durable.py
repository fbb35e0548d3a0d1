"""Durable calls of one run: what `ctx.step`, `ctx.sleep`, `ctx.wait_for` and `ctx.run` do.

    call ─► is its name recorded? ── yes ─► return the record, or raise its failure again: nothing runs
               │ no
               ├─ step, transact:   run the function ─► record ─► return the decoded record
               └─ sleep, wait, run: record what it waits for ─► park ─► record what has come ─► return it

A run whose calls are all parked is suspended: see `parking.py`. So nothing has to be declared, and
`gather`, task groups and `create_task` work: a step beside a wait ends and is recorded before the run
is suspended. What is no durable call is cancelled with the body.
"""

from __future__ import annotations

import hashlib
import inspect
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import MethodType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from msgspec import Struct

from reltask.errors import ArgumentsError, LockLost, ReltaskError, StepFailed, TaskSignal, UsageError, WaitTimeout
from reltask.model.arguments import Value, encode_json, value_of
from reltask.model.backoff import Backoff, one_off
from reltask.model.clock import Clock
from reltask.model.durable import LONGEST_NAME, ChildEnd, SignalView, StepKind, StepRecord, StepState, StepView
from reltask.model.job import LATEST
from reltask.model.keys import KeyHash
from reltask.model.settings import LARGEST_TEXT
from reltask.producer.signal import Signal
from reltask.stores.store import Store
from reltask.worker.journal import Caller, Journal, Record, described, fingerprint_source, is_final, split_error
from reltask.worker.parking import AWAY, SHORT, Parking
from reltask.worker.run import Run

T = TypeVar("T")
OUTAGE_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)


class StepOptions(Struct, frozen=True, kw_only=True):
    """What `ctx.using` says about a step."""

    attempts: int = 1
    backoff: Backoff | None = None
    timeout: timedelta | None = None


class DurableCall(Struct, kw_only=True, eq=False):
    """One durable call under way."""

    name: str
    """As it is recorded."""
    base: str
    """As the body wrote it."""
    kind: StepKind
    order: int
    """Calls are numbered as they begin."""
    started_at: datetime
    caller: Caller
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


class Durable:
    """The durable calls of one run. Lives on the worker's loop."""

    def __init__(
        self, run: Run, store: Store, record: Record, *, clock: Clock, rng: random.Random, value_limit: int
    ) -> None:
        self.journal = Journal(run, store, record)
        self.parking = Parking(run, store, self.journal, clock=clock)
        self._run = run
        self._clock = clock
        self._rng = rng
        self._limit = value_limit
        self._counts: Counter[str] = Counter()
        self._under_way: set[str] = set()
        self._begun = 0
        self.changed: Callable[[str], None] = _ignore
        """Called with the name of a step whose function or arguments are not those that were recorded."""

    # Every call

    def enter(self, name: str, kind: StepKind, hashed: str = "") -> DurableCall:
        """Begin a call: give it its recorded name, and refuse what cannot be distinguished later."""
        self._refuse_when_over(name, kind)
        check_name(name)
        if name in self._under_way:
            raise UsageError(
                f"Two calls named {name!r} are under way at once: their records could not be distinguished.",
                remedy='Name them by what they are about: ctx.step(f"label:{id}", …).',
            )
        self._counts[name] += 1
        nth = self._counts[name]
        self._begun += 1
        self._under_way.add(name)
        caller = self.journal.begin()
        self.parking.begin()
        return DurableCall(
            name=name if nth == 1 else f"{name}#{nth}",
            base=name,
            kind=kind,
            order=self._begun,
            started_at=self.parking.now(),
            caller=caller,
            fingerprint=hashed,
        )

    def leave(self, call: DurableCall) -> None:
        """The call has ended, however."""
        self._under_way.discard(call.base)
        self.journal.end(call.caller)
        self.parking.end()

    def _refuse_when_over(self, name: object, kind: StepKind) -> None:
        run = self._run
        if run.suspension is not None:
            self.parking.refuse()
            raise UsageError(
                "The body went on after it was suspended.",
                remedy="Do not catch asyncio.CancelledError or BaseException around calls of ctx without raising it.",
            )
        run.check()
        if run.has_ended:
            raise UsageError(f"ctx: {kind} {name!r} was asked for after the body had ended.", remedy="Await it there.")
        if run.fatal is not None:
            raise UsageError(f"The job is dead, because a value could not be recorded. {run.fatal}")
        if run.completion is not None:
            raise UsageError(
                "This slot has been completed by an earlier transaction of this body: nothing can be recorded in it.",
                remedy="Use ctx.transaction(complete=False), or make it the last thing that the body does.",
            )

    async def found(self, call: DurableCall) -> StepView | StepRecord | None:
        """What is recorded of a call. A record of another kind of call is refused."""
        step = await self.patiently(lambda: self.journal.find(call.name))
        await self.journal.until_certain()
        self._refuse_when_over(call.name, call.kind)
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

    async def patiently(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask until the database answers, for as long as the run may go on."""
        tries = 0
        while True:
            try:
                return await ask()
            except AWAY:
                self._run.check()
            await self._clock.sleep(OUTAGE_PAUSES[min(tries, len(OUTAGE_PAUSES) - 1)])
            tries += 1

    # Steps

    async def begin_step(self, call: DurableCall) -> StepView | StepRecord | None:
        """Before a step's function runs: its record, if it need not. Waits until its next attempt is due."""
        step = await self.found(call)
        if step is None or is_final(step):
            return step
        call.attempt = step.attempt + 1
        await self._pause(call, step.wake_at)
        return None

    async def end_step(self, call: DurableCall, codec: Value, value: object) -> Any:
        """The function returned: record its value, and return what was recorded."""
        text = self.encode(codec, value)
        await self.journal.write(call.record(StepState.DONE, value=text))
        return codec.decode(text)

    async def fail_step(self, call: DurableCall, options: StepOptions, error: Exception) -> None:
        """The function raised: return when it is to be tried again, or raise StepFailed."""
        text = described(error)
        if call.attempt >= options.attempts:
            self.journal.fail(call.record(StepState.FAILED, error=text))
            raise StepFailed(call.name, *split_error(text)) from error
        delay = (options.backoff or one_off()).delay(call.attempt, rng=self._rng)
        wake_at = self._later(delay)
        if delay > SHORT:
            waiting = call.record(StepState.WAITING, error=text, wake_at=wake_at)
            await self.journal.write(waiting, progress=False)
        await self._pause(call, wake_at)
        call.attempt += 1

    async def fail_transact(self, call: DurableCall, options: StepOptions, error: Exception, *, is_begun: bool) -> None:
        """As `fail_step`, but a database that is away before the function was called is waited for.

        Nothing has been tried then, and an outage must not use up the attempts.
        """
        if is_begun or not isinstance(error, AWAY):
            await self.fail_step(call, options, error)
            return
        self._run.check()
        await self._clock.sleep(OUTAGE_PAUSES[0])

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
                await self.journal.write(call.record(StepState.WAITING, wake_at=wake_at))
            await self._pause(call, wake_at)
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
                await self.journal.write(waiting)
            else:
                wake_at = step.wake_at
            arrived: SignalView | None = await self.parking.park(call.name, call.order, wake_at, signal=signal.name)
            if arrived is None:
                late = WaitTimeout(f"The signal {signal.name!r} did not come in time.")
                self.journal.fail(call.record(StepState.FAILED, signal=signal.name, error=described(late)))
                raise late
            return await self._receive(call, signal, arrived)
        finally:
            self.leave(call)

    async def _receive(self, call: DurableCall, signal: Signal[T], arrived: SignalView) -> T:
        """Record a signal's value, and return it. One of a wrong type is a failure: caught, it counts as received."""
        received = {"signal": signal.name, "signal_id": arrived.id}
        try:
            value = signal.decode(arrived.value)
        except ArgumentsError as error:
            self.journal.fail(call.record(StepState.FAILED, error=described(error), **received))
            raise
        await self.journal.write(call.record(StepState.DONE, value=arrived.value, **received))
        return value

    async def ends_of(self, call: DurableCall, children: int) -> list[ChildEnd]:
        """Wait until all children of a recorded RUN have ended; record how, and return it in their order."""
        ends: list[ChildEnd] = await self.parking.park(call.name, call.order, None, children=children)
        text = encode_json(ends)
        if len(text) > LARGEST_TEXT:
            self._run.fatal = (
                f"The results of the {children} children of {call.name!r}: {len(text):,} bytes together exceed the "
                f"limit of {LARGEST_TEXT:,}. Let each child store its result elsewhere, and return where."
            )
            raise ArgumentsError(self._run.fatal)
        await self.journal.write(call.record(StepState.DONE, value=text.decode()))
        return ends

    async def _pause(self, call: DurableCall, wake_at: datetime | None) -> None:
        """Wait until this time, if it has not come yet."""
        if wake_at is None or wake_at > self.parking.now():
            await self.parking.park(call.name, call.order, wake_at)

    def _later(self, length: timedelta) -> datetime:
        return min(self.parking.now() + length, LATEST - timedelta(days=1))

    # Stopping

    def close(self, written: Callable[[], object]) -> bool:
        """The body has ended. True: all that it did is recorded; else `written` is called when it is."""
        self.parking.close()
        return self.journal.close(written)


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


def fingerprint(function: object, args: Sequence[Any], kwargs: dict[str, Any], keys: KeyHash) -> str:
    """A hash of function and arguments; of arguments that JSON cannot hold, only of their types.

    Beside a codec it is keyed: a plain hash of a small number can be undone by trying all of them.
    """
    source = fingerprint_source(function)
    try:
        given = encode_json([args, kwargs])
    except Exception:  # noqa: BLE001 - a step's arguments may be anything: they are not stored
        given = repr([type(one).__name__ for one in (*args, *kwargs.values())]).encode()
    if keys.secret is None:  # of a codec without a hash_key: the arguments must not be hashed
        given = b""
    key = hashlib.blake2b(keys.secret).digest() if keys.secret else b""
    return hashlib.blake2b(source.encode() + b"\0" + given, digest_size=8, key=key).hexdigest()


_codecs: WeakKeyDictionary[Callable[..., Any], Value] = WeakKeyDictionary()


def codec_of(function: Callable[..., Any], name: str) -> Value:
    """How a step's value is recorded. Made before the function runs: a bad annotation must not cost an effect."""
    if not callable(function):
        if inspect.iscoroutine(function):
            function.close()  # else Python warns later that it was never awaited
        raise UsageError(
            f"Step {name!r} got {type(function).__name__} instead of a function.",
            remedy='Give the function and its arguments: ctx.step("charge", charge, card).',
        )
    source = _annotated(function)
    try:
        if (known := _codecs.get(source)) is not None:
            return known
        codec = _codecs[source] = value_of(source, label=f"What {fingerprint_source(source)} returns")
    except TypeError:  # it has no weak references
        return value_of(source, label=f"What {fingerprint_source(source)} returns")
    return codec


def _annotated(function: Any) -> Any:
    """The function whose annotation says what is returned: behind a task, a partial or an object that can be called."""
    function = getattr(function, "function", function)
    while isinstance(function, partial | MethodType):
        function = function.func if isinstance(function, partial) else function.__func__
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return type(function).__call__


def _recorded_failure(step: StepView | StepRecord) -> ReltaskError:
    kind, message = split_error(step.error)
    if step.kind is StepKind.WAIT:
        return WaitTimeout(message) if kind == WaitTimeout.__name__ else ArgumentsError(message)
    return StepFailed(step.name, kind, message)


def _ignore(_: str) -> None:
    """The default callback."""
