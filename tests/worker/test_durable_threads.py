"""Durable calls of `def` tasks: the same names without `await`, in a thread. Real time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from reltask import SyncContext, current_step, events
from reltask.errors import LockLost, StepFailed, Stopped, TransientError, WaitTimeout
from reltask.model.job import State
from reltask.producer.transaction import SyncTransaction
from reltask.worker.parking import Suspended
from tests.worker.durable_helpers import away, result_of, send, steps_of
from tests.worker.worker_harness import WorkerHarness

pytestmark = pytest.mark.slow


async def test_a_def_task_has_the_same_calls(live: WorkerHarness) -> None:
    """Steps, attempts, transactions, sleeps, signals and children: suspended, resumed, each effect once."""
    app = live.app()
    calls: list[Any] = []

    @app.task
    def label(number: int) -> str:
        return f"L{number}"

    def charge(card: str) -> int:
        calls.append((card, current_step().attempt, threading.current_thread().name.startswith("reltask-body")))
        if current_step().attempt == 1:
            raise ValueError("try again")
        return 7

    def book(tx: SyncTransaction, number: int) -> int:
        calls.append("book")
        tx.execute("create table effects (n)")
        return number * 2

    @app.task
    def order(ctx: SyncContext) -> list[Any]:
        number = ctx.using(attempts=2, backoff="10ms").step("charge", charge, "visa")
        booked = ctx.transact("book", book, number)
        ctx.sleep("nap", "1500ms")
        answer = ctx.wait_for("go")
        try:
            ctx.wait_for("never", timeout="0s")
        except WaitTimeout:
            calls.append("late")
        labels = ctx.run_all("labels", [label.call(n) for n in (1, 2)])
        ctx.start("more", label.call(3))
        return [number, booked, answer, labels, ctx.run("one", label.call(9))]

    job = await order.enqueue()
    async with app.worker() as worker:
        await app.log.wait(events.RunEnded, outcome="suspended")
        await send(app, job, "go", "now", wake=worker)
        await app.log.wait(events.RunSucceeded, task="order")
        await app.log.wait(events.RunSucceeded, 4, task="label")
    assert await result_of(app, "order") == '[7,14,"now",["L1","L2"],"L9"]'
    assert calls[:3] == [("visa", 1, True), ("visa", 2, True), "book"]
    assert set(calls[3:]) == {"late"}
    app.close()


async def test_a_caught_failure_is_replayed_in_a_thread(live: WorkerHarness) -> None:
    """Recorded with the next step, as in an `async def` task."""
    app = live.app()
    calls: list[Any] = []

    def bad() -> None:
        calls.append("bad")
        raise ValueError("no")

    @app.task
    def order(ctx: SyncContext) -> str:
        try:
            ctx.step("bad", bad)
        except StepFailed as error:
            ctx.sleep("nap", "1200ms")
            return error.error
        return "none"

    await order.enqueue()
    async with app.worker():
        await app.log.wait(events.RunSucceeded)
    assert (await app.outcomes(), await result_of(app), calls) == (["suspended", "succeeded"], '"no"', ["bad"])
    app.close()


@pytest.mark.parametrize("then", ["return", "step"])
async def test_a_thread_that_swallows_its_suspension_fails(live: WorkerHarness, then: str) -> None:
    """With a clear error; nothing is recorded of what it does afterwards."""
    app = live.app()
    seen: list[Any] = []

    @app.task(max_attempts=1)
    def rude(ctx: SyncContext) -> None:
        try:
            ctx.sleep("nap", "1h")
        except BaseException as error:  # noqa: BLE001 - the point of it
            seen.append(type(error))
        if then == "step":
            ctx.step("after", seen.append, Suspended)

    job = await rude.enqueue()
    async with app.worker():
        failed = await app.log.wait(events.RunFailed)
    assert "went on after it was suspended" in failed.error
    assert (seen, sorted(await steps_of(app, job)), (await app.one_job()).state) == ([Suspended], ["nap"], State.DEAD)
    app.close()


@pytest.mark.parametrize("state", ["parked", "recording", "reading"])
async def test_a_waiting_thread_ends_when_its_worker_stops(live: WorkerHarness, state: str) -> None:
    """A thread cannot be cancelled: a call that waits for the database, or for a look, raises instead."""
    app, ended = live.app(), threading.Event()
    raised: list[Any] = []
    verb = {"parked": "read_waits", "recording": "record_steps", "reading": "read_steps"}[state]
    met = asyncio.Event()

    def unavailable() -> TransientError:
        met.set()
        return away()

    @app.task(backoff="0s", lock_timeout="10s")
    def order(ctx: SyncContext) -> None:
        if state == "reading" and ctx.fence == 1:
            ctx.step("before", lambda: None)
            raise ValueError
        try:
            ctx.step("x", lambda: None) if state != "parked" else ctx.sleep("nap", "1s")
        except BaseException as error:
            raised.append(type(error))
            raise
        finally:
            ended.set()

    await order.enqueue()
    async with app.worker():
        if state == "reading":
            await app.log.wait(events.RunFailed)
        app.faults.error, app.faults.verbs = unavailable, {verb}
        await met.wait()
    assert await asyncio.to_thread(ended.wait, 10)
    assert raised[0] in (Stopped, LockLost)
    with contextlib.suppress(Exception):
        app.close()


async def test_an_async_function_is_refused_in_a_thread(live: WorkerHarness) -> None:
    """It could not be awaited there."""
    app = live.app()

    async def charge() -> None: ...

    @app.task(max_attempts=1)
    def order(ctx: SyncContext) -> None:
        ctx.step("charge", charge)  # type: ignore[unused-coroutine]

    await order.enqueue()
    async with app.worker():
        failed = await app.log.wait(events.RunFailed)
    assert "cannot run in a thread" in failed.error
    app.close()


@pytest.mark.parametrize("style", ["pool", "own threads"])
async def test_a_failure_in_a_thread_of_the_body_is_not_caught_by_the_others(live: WorkerHarness, style: str) -> None:
    """Other threads, and the next work of the same one, show nothing: the next attempt runs the failed step again."""
    app = live.app()
    calls: list[int] = []

    def charge(number: int) -> int:
        calls.append(number)
        if number == 1 and calls.count(1) == 1:
            raise ConnectionError("try again")
        return number

    @app.task(backoff="10ms")
    def order(ctx: SyncContext) -> list[int]:
        def one(number: int) -> int:
            return ctx.step(f"charge:{number}", charge, number)

        if style == "pool":
            with ThreadPoolExecutor(1) as pool:
                return list(pool.map(one, [1, 2, 3]))
        raised: list[StepFailed] = []
        for number in (1, 2, 3):
            thread = threading.Thread(target=_kept, args=(raised, one, number))
            thread.start()
            thread.join()
        if raised:
            raise raised[0]
        return [one(number) for number in (1, 2, 3)]

    await order.enqueue()
    async with app.worker():
        await app.log.wait(events.RunSucceeded)
    assert await app.outcomes() == ["failed", "succeeded"]
    assert sorted(calls)[:2] == [1, 1]
    app.close()


def _kept(raised: list[StepFailed], one: Callable[[int], int], number: int) -> None:
    try:
        one(number)
    except StepFailed as error:
        raised.append(error)


@pytest.mark.parametrize("where", ["thread", "body"])
async def test_a_failure_in_a_thread_of_the_body_is_caught_by_its_own_work(live: WorkerHarness, where: str) -> None:
    """The compensation begins in the same work, or in the body itself: the failure is recorded with it."""
    app = live.app()
    calls: list[str] = []

    def bad() -> None:
        calls.append("bad")
        raise ValueError("no")

    @app.task
    def order(ctx: SyncContext) -> str:
        def one() -> None:
            try:
                ctx.step("bad", bad)
            except StepFailed:
                if where == "body":
                    raise
                ctx.step("refund", calls.append, "refund")

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(one)
            try:
                future.result()
            except StepFailed:
                ctx.step("refund", calls.append, "refund")
        ctx.sleep("nap", "1100ms")
        return "end"

    await order.enqueue()
    async with app.worker():
        await app.log.wait(events.RunSucceeded)
    assert (await app.outcomes(), calls) == (["suspended", "succeeded"], ["bad", "refund"])
    app.close()


async def test_other_threads_of_a_suspended_body_end_with_it(live: WorkerHarness) -> None:
    """One waits for a signal; the next call of another one ends that, too, instead of failing the run."""
    app = live.app()
    suspended = threading.Event()

    @app.task(max_attempts=1)
    def order(ctx: SyncContext) -> list[str]:
        def wait() -> str:
            try:
                return str(ctx.wait_for("go"))
            except Suspended:
                suspended.set()
                raise

        def work() -> str:
            ctx.step("a", lambda: None)
            suspended.wait(10)
            return ctx.step("b", lambda: "worked")

        with ThreadPoolExecutor(2) as pool:
            return [future.result() for future in (pool.submit(work), pool.submit(wait))]

    job = await order.enqueue()
    async with app.worker() as worker:
        await app.log.wait(events.RunEnded, outcome="suspended")
        await send(app, job, "go", "now", wake=worker)
        await app.log.wait(events.RunSucceeded)
    assert await result_of(app) == '["worked","now"]'
    app.close()
