"""The durable calls of `Context`. Those of `SyncContext` are in `durable_sync.py`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast, overload

from reltask.errors import UsageError
from reltask.model.arguments import Value
from reltask.model.backoff import Backoff, parse_backoff
from reltask.model.durable import Recording, StepKind, StepState
from reltask.model.duration import Duration, parse_duration
from reltask.producer.enqueue import Call
from reltask.producer.job import Job
from reltask.producer.signal import Signal, signal_of
from reltask.producer.transaction import (
    OnLoop,
    TaskTransaction,
    current,
    open_transaction,
)
from reltask.worker.children import listed, results_of
from reltask.worker.durable import Durable, DurableCall, StepOptions, codec_of, fingerprint, is_failure
from reltask.worker.step import Step, around, running_step

if TYPE_CHECKING:
    from reltask.worker.context import ContextServices
    from reltask.worker.run import Run

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
NO_OPTIONS = StepOptions()


def refuse_inside(call: str) -> None:
    """Refuse a durable call where it could not be recorded: in a step, or in an open transaction."""
    refuse_in_step(call)
    if open_transaction() is not None:
        raise UsageError(
            f"ctx.{call}() inside an open transaction would wait for it.",
            remedy='Call it before or after the block; to record a step with its writes: ctx.transact("name", f, …).',
        )


def refuse_in_step(call: str) -> None:
    """Refuse a call inside a step."""
    inside = running_step.get()
    if inside is not None:
        raise UsageError(
            f"ctx.{call}() was called inside the step {inside.name!r}, which is recorded as a whole.",
            remedy="Call it from the body itself.",
        )


def length_of(label: str, value: Duration) -> timedelta:
    """A duration of a durable call, checked."""
    try:
        return parse_duration(value, name=label)
    except ValueError as error:
        raise UsageError(str(error)) from None


def step_options(attempts: int, backoff: Duration | Backoff | None, timeout: Duration | None) -> StepOptions:
    """The options of `ctx.using`, checked."""
    if attempts < 1:
        raise UsageError(f"attempts={attempts}: a step is tried at least once.")
    limit = None if timeout is None else length_of("timeout", timeout)
    return StepOptions(attempts=attempts, backoff=parse_backoff(backoff), timeout=limit)


def durable_of(run: Run, services: ContextServices) -> Durable:
    """The run's durable calls, made when the first one needs it. On the worker's loop only."""
    if run.ending is not None and run.ending.get_loop() is not asyncio.get_running_loop():
        raise UsageError(
            "A durable call was made in another event loop than the body's: its answer would never arrive there.",
            remedy="Call it from the body's own loop; in a thread: asyncio.run_coroutine_threadsafe(…, loop).",
        )
    if run.durable is None:
        run.durable = services.durable(run)
    return cast("Durable", run.durable)


def step_of(run: Run, call: DurableCall) -> Step:
    """What `current_step()` returns inside this call."""
    return Step(call.name, call.attempt, f"{run.claim.idempotency_key}:{call.name}")


class Steps:
    """`ctx.using(…)`: steps with attempts, backoff and timeout of their own."""

    def __init__(self, run: Run, services: ContextServices, options: StepOptions = NO_OPTIONS) -> None:
        self._run = run
        self._services = services
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
        durable, codec = durable_of(self._run, self._services), codec_of(function, name)
        call = durable.enter(name, StepKind.STEP, fingerprint(function, args, kwargs, self._services.keys))
        try:
            found = await durable.begin_step(call)
            if found is not None:
                return codec.decode(found.value or "null")
            while True:
                step = step_of(self._run, call)
                token = running_step.set(step)
                try:
                    with around(step):
                        value = await self._limited(function(*args, **kwargs))
                except Exception as error:
                    if not is_failure(error):
                        raise
                    failed = error
                else:
                    return await durable.end_step(call, codec, value)
                finally:
                    running_step.reset(token)
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
        durable, codec = durable_of(self._run, self._services), codec_of(function, name)
        call = durable.enter(name, StepKind.TRANSACT, fingerprint(function, args, kwargs, self._services.keys))
        try:
            found = await durable.begin_step(call)
            if found is not None:
                return cast("R", codec.decode(found.value or "null"))
            while True:
                recorder = TransactionRecord(durable, call, codec)
                try:
                    return cast("R", await self._transacted(recorder, lambda tx: function(tx, *args, **kwargs)))
                except Exception as error:
                    if self._run.fatal is not None or not is_failure(error):
                        raise
                    failed = error
                await durable.fail_transact(call, self._options, failed, is_begun=recorder.is_begun)
        finally:
            durable.leave(call)

    async def _transacted(
        self, recorder: TransactionRecord, function: Callable[[TaskTransaction], Awaitable[Any]]
    ) -> Any:
        home = OnLoop(asyncio.get_running_loop())
        opening = self._services.transactions.open(self._run, complete=False, home=home, record=recorder.make)
        async with opening as block:
            recorder.is_begun = True
            made = step_of(self._run, recorder.call)
            token, step = current.set(block), running_step.set(made)
            try:
                with around(made):
                    recorder.value = await self._limited(function(block))
            finally:
                current.reset(token)
                running_step.reset(step)
        return recorder.committed()


class TransactionRecord:
    """The record of a step that commits with its writes."""

    def __init__(self, durable: Durable, call: DurableCall, codec: Value) -> None:
        self.call = call
        self.value: Any = None
        """What the function has returned."""
        self.is_begun = False
        """Whether the transaction is open: the function is called."""
        self._durable = durable
        self._codec = codec
        self._text = ""
        self._recording: Recording

    def make(self) -> Recording:
        """The recording: asked for before the last statement of the transaction."""
        self._text = self._durable.encode(self._codec, self.value)
        done = self.call.record(StepState.DONE, value=self._text)
        self._recording = self._durable.journal.in_transaction(done)
        return self._recording

    def committed(self) -> Any:
        """Remember what was recorded, and return the decoded record."""
        self._durable.journal.written(self._recording)
        return self._codec.decode(self._text)


class DurableContext:
    """Durable calls of an `async def` task."""

    _run: Run
    _services: ContextServices

    def using(
        self, *, attempts: int = 1, backoff: Duration | Backoff | None = None, timeout: Duration | None = None
    ) -> Steps:
        """Steps that are tried up to `attempts` times, and may take `timeout` each time.

        Short waits between attempts are made in place; in long ones the function is suspended.
        """
        return Steps(self._run, self._services, step_options(attempts, backoff, timeout))

    @overload
    async def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the function once and record what it returns; later runs of this slot return the record."""
        return await Steps(self._run, self._services).step(name, function, *args, **kwargs)

    async def transact(
        self,
        name: str,
        function: Callable[Concatenate[TaskTransaction, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call `function(tx, …)` in a transaction: its writes and the step's record commit together, or neither."""
        return await Steps(self._run, self._services).transact(name, function, *args, **kwargs)

    async def sleep(self, name: str, length: Duration) -> None:
        """Go on after this time. Meanwhile the function is suspended: no place, no lock, no connection."""
        refuse_inside("sleep")
        await durable_of(self._run, self._services).sleep(name, length_of("length", length))

    @overload
    async def wait_for(self, signal: Signal[T], *, timeout: Duration | None = None, name: str | None = None) -> T: ...
    @overload
    async def wait_for(self, signal: str, *, timeout: Duration | None = None, name: str | None = None) -> Any: ...
    async def wait_for(
        self, signal: Signal[Any] | str, *, timeout: Duration | None = None, name: str | None = None
    ) -> Any:
        """Wait until this signal is sent to the job, and return its value; WaitTimeout after `timeout`.

        The step is called like the signal, unless `name` says otherwise.
        """
        refuse_inside("wait_for")
        wanted = signal_of(signal)
        limit = None if timeout is None else length_of("timeout", timeout)
        durable = durable_of(self._run, self._services)
        return await durable.wait_for(wanted.name if name is None else name, wanted, limit)

    async def run(self, name: str, call: Call[R]) -> R:
        """Have a worker run this call as a child job, and return its result; suspended meanwhile."""
        return (await self.run_all(name, [call]))[0]

    async def run_all(self, name: str, calls: Iterable[Call[R]], *, return_exceptions: bool = False) -> list[R]:
        """Have workers run these calls as child jobs, and return their results in order; suspended meanwhile.

        ChildFailed if one of them died or was cancelled; with `return_exceptions` it stands in its place.
        """
        refuse_inside("run")
        durable, wanted = durable_of(self._run, self._services), listed(calls)
        ends = await self._services.children.run_all(self._run, durable, name, wanted)
        return results_of(wanted, ends, return_exceptions=return_exceptions)

    async def start(self, name: str, call: Call[R]) -> Job[R]:
        """Enqueue this call once, however often the body starts again, and do not wait for it."""
        refuse_inside("start")
        return await self._services.children.start(self._run, durable_of(self._run, self._services), name, call)
