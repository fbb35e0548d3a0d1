"""The durable calls of `SyncContext`: the names of `Context`, without `await`.

Both ask the same `Durable` on the worker's loop. In a `def` task only the step's own function runs in
the body's thread; each call waits there for the loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractContextManager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast, overload

from reltask.errors import UsageError
from reltask.model.backoff import Backoff
from reltask.model.durable import StepKind
from reltask.model.duration import Duration
from reltask.producer.enqueue import Call
from reltask.producer.job import Job
from reltask.producer.signal import Signal, signal_of
from reltask.producer.transaction import SyncTransaction, wait_for
from reltask.worker.children import listed, results_of
from reltask.worker.durable import Durable, DurableCall, StepOptions, codec_of, fingerprint, is_failure
from reltask.worker.durable_context import (
    NO_OPTIONS,
    TransactionRecord,
    durable_of,
    length_of,
    refuse_inside,
    step_of,
    step_options,
)
from reltask.worker.journal import calling
from reltask.worker.step import around, running_step

if TYPE_CHECKING:
    from reltask.worker.context import ContextServices
    from reltask.worker.run import Run

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
OpenBlock = Callable[..., AbstractContextManager[SyncTransaction]]
"""Opens a transaction of a `def` task."""
BODIES = "reltask.worker.bodies"
POOLS = ("threading", "concurrent.futures.thread", "multiprocessing.pool")
"""Modules that run one work after another in a thread."""


def work_of_thread() -> FrameType | None:
    """What this thread works on, as the outermost frame below those of a pool; None: the body itself."""
    frame, outermost = inspect.currentframe(), None
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module == BODIES:
            return None
        if module not in POOLS:
            outermost = frame
        frame = frame.f_back
    return outermost


class OnWorkersLoop:
    """Runs durable calls of a `def` task on the worker's loop, and waits for them in the task's thread."""

    def __init__(self, run: Run, services: ContextServices, loop: asyncio.AbstractEventLoop) -> None:
        self.run = run
        self.services = services
        self.loop = loop

    def wait(self, work: Callable[[Durable], Coroutine[Any, Any, T]]) -> T:
        """Call `work` with the run's durable calls on the loop, and wait for it."""
        caller = work_of_thread()

        async def awaited() -> T:
            calling.set(caller)
            return await work(durable_of(self.run, self.services))

        return wait_for(awaited(), self.loop)

    def enter(self, name: str, kind: StepKind, hashed: str) -> DurableCall:
        """Begin a durable call."""

        async def enter(durable: Durable) -> DurableCall:
            return durable.enter(name, kind, hashed)

        return self.wait(enter)

    def leave(self, call: DurableCall) -> None:
        """End it."""
        self.loop.call_soon_threadsafe(self.run.durable.leave, call)


class SyncSteps:
    """`ctx.using(…)` of a `def` task."""

    def __init__(self, there: OnWorkersLoop, block: OpenBlock, options: StepOptions = NO_OPTIONS) -> None:
        self._there = there
        self._block = block
        self._options = options

    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function once and record what it returns: see `Steps.step`."""
        refuse_inside("step")
        _refuse_async(name, function)
        there, codec = self._there, codec_of(function, name)
        call = there.enter(name, StepKind.STEP, fingerprint(function, args, kwargs, there.services.keys))
        try:
            found = there.wait(lambda durable: durable.begin_step(call))
            if found is not None:
                return cast("R", codec.decode(found.value or "null"))
            while True:
                step = step_of(there.run, call)
                token = running_step.set(step)
                try:
                    with around(step):
                        value = function(*args, **kwargs)
                except Exception as error:
                    if not is_failure(error):
                        raise
                    failed = error
                else:
                    return cast("R", there.wait(partial(Durable.end_step, call=call, codec=codec, value=value)))
                finally:
                    running_step.reset(token)
                there.wait(partial(Durable.fail_step, call=call, options=self._options, error=failed))
        finally:
            there.leave(call)

    def transact(
        self, name: str, function: Callable[Concatenate[SyncTransaction, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call `function(tx, …)` in a transaction: see `Steps.transact`."""
        refuse_inside("transact")
        _refuse_async(name, function)
        there, codec = self._there, codec_of(function, name)
        call = there.enter(name, StepKind.TRANSACT, fingerprint(function, args, kwargs, there.services.keys))
        try:
            found = there.wait(lambda durable: durable.begin_step(call))
            if found is not None:
                return cast("R", codec.decode(found.value or "null"))
            while True:
                recorder = TransactionRecord(there.run.durable, call, codec)
                try:
                    return cast("R", self._transacted(recorder, lambda tx: function(tx, *args, **kwargs)))
                except Exception as error:
                    if there.run.fatal is not None or not is_failure(error):
                        raise
                    failed = error
                begun = recorder.is_begun
                fail = partial(Durable.fail_transact, call=call, options=self._options, error=failed, is_begun=begun)
                there.wait(fail)
        finally:
            there.leave(call)

    def _transacted(self, recorder: TransactionRecord, function: Callable[[SyncTransaction], Any]) -> Any:
        with self._block(record=recorder.make) as tx:
            recorder.is_begun = True
            token = running_step.set(step_of(self._there.run, recorder.call))
            try:
                recorder.value = function(tx)
            finally:
                running_step.reset(token)

        async def committed(_: Durable) -> Any:
            return recorder.committed()

        return self._there.wait(committed)


class SyncDurableContext:
    """Durable calls of a `def` task, which wait in its thread."""

    _there: OnWorkersLoop
    _open_block: OpenBlock

    def using(self, *, attempts: int = 1, backoff: Duration | Backoff | None = None) -> SyncSteps:
        """Steps that are tried up to `attempts` times: see `Context.using`. A thread cannot be stopped: no timeout."""
        return SyncSteps(self._there, self._open_block, step_options(attempts, backoff, None))

    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function once and record what it returns: see `Context.step`."""
        return SyncSteps(self._there, self._open_block).step(name, function, *args, **kwargs)

    def transact(
        self, name: str, function: Callable[Concatenate[SyncTransaction, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call `function(tx, …)` in a transaction: see `Context.transact`."""
        return SyncSteps(self._there, self._open_block).transact(name, function, *args, **kwargs)

    def sleep(self, name: str, length: Duration) -> None:
        """Go on after this time: see `Context.sleep`."""
        refuse_inside("sleep")
        limit = length_of("length", length)
        self._there.wait(lambda durable: durable.sleep(name, limit))

    @overload
    def wait_for(self, signal: Signal[T], *, timeout: Duration | None = None, name: str | None = None) -> T: ...
    @overload
    def wait_for(self, signal: str, *, timeout: Duration | None = None, name: str | None = None) -> Any: ...
    def wait_for(self, signal: Signal[Any] | str, *, timeout: Duration | None = None, name: str | None = None) -> Any:
        """Wait for a signal: see `Context.wait_for`."""
        refuse_inside("wait_for")
        wanted = signal_of(signal)
        limit = None if timeout is None else length_of("timeout", timeout)
        return self._there.wait(lambda durable: durable.wait_for(wanted.name if name is None else name, wanted, limit))

    def run(self, name: str, call: Call[R]) -> R:
        """Run a child job and return its result: see `Context.run`."""
        return self.run_all(name, [call])[0]

    def run_all(self, name: str, calls: Iterable[Call[R]], *, return_exceptions: bool = False) -> list[R]:
        """Run child jobs and return their results: see `Context.run_all`."""
        refuse_inside("run")
        there, wanted = self._there, listed(calls)
        ends = there.wait(lambda durable: there.services.children.run_all(there.run, durable, name, wanted))
        return results_of(wanted, ends, return_exceptions=return_exceptions)

    def start(self, name: str, call: Call[R]) -> Job[R]:
        """Enqueue a child that is not waited for: see `Context.start`."""
        refuse_inside("start")
        there = self._there
        return there.wait(lambda durable: there.services.children.start(there.run, durable, name, call))


def _refuse_async(name: str, function: object) -> None:
    if inspect.iscoroutinefunction(function):
        raise UsageError(
            f"Step {name!r}: an `async def` function cannot run in a thread.",
            remedy="Write the task as `async def`, or the function as `def`.",
        )
