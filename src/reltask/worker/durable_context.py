"""The durable calls of `Context` and `SyncContext`: the same names, with and without `await`.

Both ask the same `Durable` on the worker's loop. In a `def` task only the step's own function runs in
the body's thread; each call waits there for the loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast, overload

from msgspec import Struct

from reltask.errors import UsageError
from reltask.model.backoff import Backoff, parse_backoff
from reltask.model.duration import Duration, parse_duration
from reltask.model.durable import StepKind, StepState
from reltask.producer.enqueue import Call
from reltask.producer.job import Job
from reltask.producer.signal import Signal
from reltask.producer.transaction import (
    Home,
    OnLoop,
    SyncTransaction,
    TaskTransaction,
    current,
    open_transaction,
    wait_for,
)
from reltask.worker.children import results_of
from reltask.worker.durable import Durable, StepOptions, codec_of, fingerprint, is_failure

if TYPE_CHECKING:
    from reltask.worker.context import ContextServices
    from reltask.worker.run import Run

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

class Step(Struct, frozen=True):
    """The step whose function runs."""

    name: str
    attempt: int
    idempotency_key: str
    """The same however often this step's function is called: pass it to systems that can use it."""


_step: ContextVar[Step | None] = ContextVar("reltask_step", default=None)


def current_step() -> Step:
    """The step whose function calls this; UsageError elsewhere."""
    step = _step.get()
    if step is None:
        raise UsageError("current_step() was called outside of a step.", remedy="Call it in the function of a step.")
    return step


def refuse_inside(call: str) -> None:
    """Refuse a durable call where it could not be recorded: in a step, or in an open transaction."""
    inside = _step.get()
    if inside is not None:
        raise UsageError(
            f"ctx.{call}() was called inside the step {inside.name!r}, which is recorded as a whole.",
            remedy="Call it from the body itself.",
        )
    if open_transaction() is not None:
        raise UsageError(
            f"ctx.{call}() inside an open transaction would wait for it.",
            remedy='Call it before or after the block; to record a step with its writes: ctx.transact("name", f, …).',
        )


def length_of(label: str, value: Duration) -> timedelta:
    """A duration of a durable call, checked."""
    try:
        length = parse_duration(value, name=label)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if length < timedelta(0):
        raise UsageError(f"{label} is negative.", remedy="Write a duration of zero or more.")
    return length


def step_options(attempts: int, backoff: Duration | Backoff | None, timeout: Duration | None) -> StepOptions:
    """The options of `ctx.using`, checked."""
    if attempts < 1:
        raise UsageError(f"attempts={attempts}: a step is tried at least once.")
    limit = None if timeout is None else length_of("timeout", timeout)
    return StepOptions(attempts=attempts, backoff=parse_backoff(backoff), timeout=limit)


def signal_of(signal: Signal[Any] | str) -> Signal[Any]:
    """A signal given by its name carries what JSON has."""
    return Signal(signal) if isinstance(signal, str) else signal


class Durables:
    """What both contexts share: the run, and its `Durable` once a call needs it."""

    _run: Run
    _services: ContextServices

    @property
    def _durable(self) -> Durable:
        """On the worker's loop only."""
        if self._run.durable is None:
            self._run.durable = self._services.durable(self._run)
        return cast("Durable", self._run.durable)

    @property
    def replaying(self) -> bool:
        """Whether steps are left that an earlier run has recorded, and this one has not come to yet."""
        durable = self._run.durable
        return self._run.claim.steps > 0 if durable is None else durable.journal.replaying

    def _step(self, call: Any) -> Step:
        return Step(call.name, call.attempt, f"{self._run.claim.idempotency_key}:{call.name}")


class Steps:
    """`ctx.using(…)`: steps with attempts, backoff and timeout of their own."""

    def __init__(self, context: Durables, options: StepOptions) -> None:
        self._context = context
        self._options = options

    @overload
    async def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the function once and record what it returns; later runs of this slot return the record.

        After a crash between the call and its record, it is called again, with the same
        `idempotency_key`.
        """
        refuse_inside("step")
        durable, codec = self._context._durable, codec_of(function, name)
        call = durable.enter(name, StepKind.STEP)
        call.fingerprint = fingerprint(function, args, kwargs)
        try:
            found = await durable.begin_step(call)
            if found is not None:
                return codec.decode(found.value or "null")
            while True:
                token = _step.set(self._context._step(call))
                try:
                    value = await self._limited(function(*args, **kwargs))
                except Exception as error:
                    if not is_failure(error):
                        raise
                    failed = error
                else:
                    return await durable.end_step(call, codec, value)
                finally:
                    _step.reset(token)
                await durable.fail_step(call, self._options, failed)
        finally:
            durable.leave(call)

    async def _limited(self, value: Any) -> Any:
        if not inspect.isawaitable(value):
            return value
        if self._options.timeout is None:
            return await value
        async with asyncio.timeout(self._options.timeout.total_seconds()):
            return await value

    async def transact(
        self,
        name: str,
        function: Callable[Concatenate[TaskTransaction, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call `function(tx, …)` in a transaction: its writes and the step's record commit together, or neither."""
        refuse_inside("transact")
        context, codec = self._context, codec_of(function, name)
        durable = context._durable
        call = durable.enter(name, StepKind.TRANSACT)
        call.fingerprint = fingerprint(function, args, kwargs)
        try:
            found = await durable.begin_step(call)
            if found is not None:
                return cast("R", codec.decode(found.value or "null"))
            while True:
                try:
                    return cast("R", await self._transacted(durable, call, codec, function, args, kwargs))
                except Exception as error:
                    if not is_failure(error):
                        raise
                    failed = error
                await durable.fail_step(call, self._options, failed)
        finally:
            durable.leave(call)

    async def _transacted(self, durable: Durable, call: Any, codec: Any, function: Any, args: Any, kwargs: Any) -> Any:
        context = self._context
        recorder = TransactionRecord(durable, call, codec)
        home = OnLoop(asyncio.get_running_loop())
        opening = context._services.transactions.open(context._run, complete=False, home=home, record=recorder.make)
        async with opening as block:
            token, step = current.set(block), _step.set(context._step(call))
            try:
                recorder.value = await self._limited(function(block, *args, **kwargs))
            finally:
                current.reset(token)
                _step.reset(step)
        return recorder.committed()


class TransactionRecord:
    """The record of a step that commits with its writes."""

    def __init__(self, durable: Durable, call: Any, codec: Any) -> None:
        self._durable = durable
        self._call = call
        self._codec = codec
        self._recording: Any = None
        self.value: Any = None

    def make(self) -> Any:
        """The recording: asked for before the last statement of the transaction."""
        text = self._durable.encode(self._codec, self.value)
        done = self._call.record(StepState.DONE, value=text)
        self._recording = self._durable.journal.in_transaction(done, order=self._call.order)
        return self._recording

    def committed(self) -> Any:
        """Remember what was recorded, and return the decoded record."""
        self._durable.journal.written(self._recording)
        return self._codec.decode(self._recording.steps[0].value)


class DurableContext(Durables):
    """Durable calls of an `async def` task."""

    def using(
        self, *, attempts: int = 1, backoff: Duration | Backoff | None = None, timeout: Duration | None = None
    ) -> Steps:
        """Steps that are tried up to `attempts` times, and may take `timeout` each time.

        Short waits between attempts are made in place; in long ones the function is suspended.
        """
        return Steps(self, step_options(attempts, backoff, timeout))

    @overload
    async def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the function once and record what it returns; later runs of this slot return the record."""
        return await Steps(self, StepOptions()).step(name, function, *args, **kwargs)

    async def transact(
        self,
        name: str,
        function: Callable[Concatenate[TaskTransaction, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call `function(tx, …)` in a transaction: its writes and the step's record commit together, or neither."""
        return await Steps(self, StepOptions()).transact(name, function, *args, **kwargs)

    async def sleep(self, name: str, length: Duration) -> None:
        """Go on after this time. Meanwhile the function is suspended: no place, no lock, no connection."""
        refuse_inside("sleep")
        await self._durable.sleep(name, length_of("length", length))

    async def wait_for(
        self, signal: Signal[T] | str, *, timeout: Duration | None = None, name: str | None = None
    ) -> T:
        """Wait until this signal is sent to the job, and return its value; WaitTimeout after `timeout`.

        The step is called like the signal, unless `name` says otherwise.
        """
        refuse_inside("wait_for")
        wanted = signal_of(signal)
        limit = None if timeout is None else length_of("timeout", timeout)
        return cast("T", await self._durable.wait_for(name or wanted.name, wanted.name, wanted.codec, limit))

    async def run(self, name: str, call: Call) -> Any:
        """Have a worker run this call as a child job, and return its result; suspended meanwhile."""
        return (await self.run_all(name, [call]))[0]

    async def run_all(self, name: str, calls: Sequence[Call], *, return_exceptions: bool = False) -> list[Any]:
        """Have workers run these calls as child jobs, and return their results in order; suspended meanwhile.

        ChildFailed if one of them died or was cancelled; with `return_exceptions` it stands in its place.
        """
        refuse_inside("run")
        ends = await self._services.children.run_all(self._run, self._durable, name, calls)
        return results_of(calls, ends, return_exceptions=return_exceptions)

    async def start(self, name: str, call: Call) -> Job:
        """Enqueue this call once, however often the body starts again, and do not wait for it."""
        refuse_inside("start")
        return await self._services.children.start(self._run, self._durable, name, call)


class SyncSteps:
    """`ctx.using(…)` of a `def` task."""

    def __init__(self, context: SyncDurableContext, options: StepOptions) -> None:
        self._context = context
        self._options = options

    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function once and record what it returns: see `Steps.step`."""
        refuse_inside("step")
        _refuse_async(name, function)
        context, codec = self._context, codec_of(function, name)
        durable, call = context._entered(name, StepKind.STEP, fingerprint(function, args, kwargs))
        try:
            found = context._wait(durable.begin_step(call))
            if found is not None:
                return cast("R", codec.decode(found.value or "null"))
            while True:
                token = _step.set(context._step(call))
                try:
                    value = function(*args, **kwargs)
                except Exception as error:
                    if not is_failure(error):
                        raise
                    failed = error
                else:
                    return cast("R", context._wait(durable.end_step(call, codec, value)))
                finally:
                    _step.reset(token)
                context._wait(durable.fail_step(call, self._options, failed))
        finally:
            context._leave(durable, call)

    def transact(
        self, name: str, function: Callable[Concatenate[SyncTransaction, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call `function(tx, …)` in a transaction: see `Steps.transact`."""
        refuse_inside("transact")
        _refuse_async(name, function)
        context, codec = self._context, codec_of(function, name)
        durable, call = context._entered(name, StepKind.TRANSACT, fingerprint(function, args, kwargs))
        try:
            found = context._wait(durable.begin_step(call))
            if found is not None:
                return cast("R", codec.decode(found.value or "null"))
            while True:
                try:
                    return cast("R", self._transacted(durable, call, codec, function, args, kwargs))
                except Exception as error:
                    if not is_failure(error):
                        raise
                    failed = error
                context._wait(durable.fail_step(call, self._options, failed))
        finally:
            context._leave(durable, call)

    def _transacted(self, durable: Durable, call: Any, codec: Any, function: Any, args: Any, kwargs: Any) -> Any:
        recorder = TransactionRecord(durable, call, codec)
        home: Home = OnLoop(self._context._loop)
        with self._context._block(home=home, record=recorder.make) as tx:
            token = _step.set(self._context._step(call))
            try:
                recorder.value = function(tx, *args, **kwargs)
            finally:
                _step.reset(token)
        return self._context._wait(_called(recorder.committed))


class SyncDurableContext(Durables):
    """Durable calls of a `def` task, which wait in its thread."""

    _loop: asyncio.AbstractEventLoop
    _block: Callable[..., Any]

    def using(self, *, attempts: int = 1, backoff: Duration | Backoff | None = None) -> SyncSteps:
        """Steps that are tried up to `attempts` times: see `Context.using`. A thread cannot be stopped: no timeout."""
        return SyncSteps(self, step_options(attempts, backoff, None))

    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function once and record what it returns: see `Context.step`."""
        return SyncSteps(self, StepOptions()).step(name, function, *args, **kwargs)

    def transact(
        self, name: str, function: Callable[Concatenate[SyncTransaction, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call `function(tx, …)` in a transaction: see `Context.transact`."""
        return SyncSteps(self, StepOptions()).transact(name, function, *args, **kwargs)

    def sleep(self, name: str, length: Duration) -> None:
        """Go on after this time: see `Context.sleep`."""
        refuse_inside("sleep")
        limit = length_of("length", length)
        self._wait(self._on_loop(lambda: self._durable.sleep(name, limit)))

    def wait_for(self, signal: Signal[T] | str, *, timeout: Duration | None = None, name: str | None = None) -> T:
        """Wait for a signal: see `Context.wait_for`."""
        refuse_inside("wait_for")
        wanted = signal_of(signal)
        limit = None if timeout is None else length_of("timeout", timeout)
        waiting = self._on_loop(lambda: self._durable.wait_for(name or wanted.name, wanted.name, wanted.codec, limit))
        return cast("T", self._wait(waiting))

    def run(self, name: str, call: Call) -> Any:
        """Run a child job and return its result: see `Context.run`."""
        return self.run_all(name, [call])[0]

    def run_all(self, name: str, calls: Sequence[Call], *, return_exceptions: bool = False) -> list[Any]:
        """Run child jobs and return their results: see `Context.run_all`."""
        refuse_inside("run")
        children = self._services.children
        ends = self._wait(self._on_loop(lambda: children.run_all(self._run, self._durable, name, calls)))
        return results_of(calls, ends, return_exceptions=return_exceptions)

    def start(self, name: str, call: Call) -> Job:
        """Enqueue a child that is not waited for: see `Context.start`."""
        refuse_inside("start")
        children = self._services.children
        return self._wait(self._on_loop(lambda: children.start(self._run, self._durable, name, call)))

    # On the worker's loop

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return wait_for(work, self._loop)

    async def _on_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await work()

    def _entered(self, name: str, kind: StepKind, hashed: str) -> tuple[Durable, Any]:
        async def enter() -> tuple[Durable, Any]:
            durable = self._durable
            call = durable.enter(name, kind)
            call.fingerprint = hashed
            return durable, call

        return self._wait(enter())

    def _leave(self, durable: Durable, call: Any) -> None:
        self._loop.call_soon_threadsafe(durable.leave, call)


async def _called(function: Callable[[], T]) -> T:
    return function()


def _refuse_async(name: str, function: object) -> None:
    if inspect.iscoroutinefunction(function):
        raise UsageError(
            f"Step {name!r}: an `async def` function cannot run in a thread.",
            remedy="Write the task as `async def`, or the function as `def`.",
        )
