"""Plain functions in threads, in real time: what they receive, what they may raise, how they are stopped."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from reltask import Snooze, SyncContext, events
from tests.worker.worker_harness import WorkerHarness


async def test_thread_body_returns_into_the_ledger(live: WorkerHarness) -> None:
    """A plain function runs in a thread, with its own ctx, arguments and the caller's context variables."""
    app = live.app()
    where = []

    @app.task
    def add(ctx: SyncContext, a: int, b: int) -> int:
        where.append(threading.current_thread().name)
        ctx.progress({"half": True})
        return a + b + ctx.attempt

    await add.enqueue(1, 2)
    await app.drain()
    assert [(run.outcome, run.result) for run in await app.runs()] == [("succeeded", "4")]
    assert where[0].startswith("reltask-body")
    app.close()


@pytest.mark.parametrize("kind", ["exit", "stop", "error", "snooze"])
async def test_thread_body_may_raise_anything(live: WorkerHarness, kind: str) -> None:
    """sys.exit and StopIteration in a thread are failures; the task's signals mean the same as elsewhere."""
    app = live.app()

    @app.task(max_attempts=1)
    def rude(kind: str) -> None:
        if kind == "exit":
            sys.exit(4)
        if kind == "stop":
            raise StopIteration
        if kind == "snooze":
            raise Snooze("1h")
        raise ValueError(kind)

    await rude.enqueue(kind)
    await app.drain()
    (run,) = await app.runs()
    expected = {"exit": "SystemExit", "stop": "StopIteration", "error": "ValueError: error", "snooze": "snoozed"}
    assert run.outcome == ("snoozed" if kind == "snooze" else "failed")
    assert run.error is not None
    assert expected[kind] in run.error
    app.close()


async def _coroutine() -> None: ...


async def _async_generator() -> AsyncIterator[None]:
    yield


def _generator() -> Iterator[None]:
    yield


class _Query:
    """A query object as in some libraries: it is sent when it is awaited."""

    def __await__(self) -> Iterator[None]:
        yield


@pytest.mark.parametrize("function", [_coroutine, _async_generator, _generator, _Query])
async def test_body_that_returns_an_awaitable_is_no_success(
    live: WorkerHarness, function: Callable[[], object]
) -> None:
    """A plain wrapper around an `async def` returns something that is never awaited: a failure that says what to do."""
    app = live.app()

    @app.task(max_attempts=1)
    @functools.wraps(function)
    def wrapper() -> object:
        return function()

    await wrapper.enqueue()
    await app.drain()
    (run,) = await app.runs()
    assert run.outcome == "failed"
    assert run.error is not None
    assert "that was never run: make its wrapper `async def`" in run.error
    app.close()


async def test_wrapper_may_run_the_coroutine_itself(live: WorkerHarness) -> None:
    """A plain wrapper that has run its coroutine has succeeded, whatever it returns."""
    app = live.app()

    @app.task
    @functools.wraps(_coroutine)
    def wrapper() -> Awaitable[None]:
        coroutine = _coroutine()
        asyncio.run(coroutine)
        return coroutine

    await wrapper.enqueue()
    await app.drain()
    assert await app.outcomes() == ["succeeded"]
    app.close()


async def test_thread_timeout_is_a_flag(live: WorkerHarness) -> None:
    """A thread past its timeout sees `cancelled`, and `Stopped` at its next call on ctx; that is a failure."""
    app = live.app()

    @app.task(timeout="20ms", max_attempts=1)
    def slow(ctx: SyncContext) -> None:
        while not ctx.cancelled:
            threading.Event().wait(0.002)
        ctx.check()

    await slow.enqueue()
    await app.drain()
    (run,) = await app.runs()
    assert (run.outcome, run.error) == ("failed", "TimeoutError: the run took longer than its timeout of 0.02 s")
    app.close()


async def test_bodies_do_not_see_each_others_context_variables(live: WorkerHarness) -> None:
    """Two threads of the pool, one after the other: the second does not see what the first set."""
    app = live.app(settings={"worker.concurrency": 1})
    variable = contextvars.ContextVar("variable", default="clean")
    seen = []

    @app.task
    def mark() -> None:
        seen.append(variable.get())
        variable.set("dirty")

    await mark.enqueue()
    await mark.enqueue()
    await app.drain()
    assert seen == ["clean", "clean"]
    app.close()


async def test_no_free_thread_is_a_failure_of_its_slot(live: WorkerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system has no more threads the run fails, and its body does not run later."""
    app = live.app()
    ran = []

    @app.task(max_attempts=1)
    def job(number: int) -> None:
        ran.append(number)

    start = threading.Thread.start
    refused: list[threading.Thread] = []

    def start_later(thread: threading.Thread) -> None:
        if thread.name.startswith("reltask-body") and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    async with app.worker():
        await job.enqueue(1)
        await app.log.wait(events.RunFailed)
        await job.enqueue(2)
        await app.log.wait(events.RunSucceeded)
    assert ran == [2]
    assert sorted(str(run.outcome) for run in await app.runs()) == ["failed", "succeeded"]
    app.close()
