"""`ctx.sleep`: the function is suspended until the database's clock says so."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from reltask import Context, events
from reltask.model.durable import StepState
from reltask.model.job import State
from tests.worker.durable_helpers import result_of, steps_of
from tests.worker.worker_harness import WorkerHarness

DAY = 86_400


def test_a_sleeping_function_holds_nothing(harness: WorkerHarness) -> None:
    """No place, no lock, no heartbeat, no attempt; it goes on at its time, and what came before does not run again."""
    app = harness.app(settings={"worker.concurrency": 1})
    calls: list[Any] = []

    @app.task(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.step("before", calls.append, "before")
        await ctx.sleep("pause", "12h")
        await ctx.step("after", calls.append, "after")

    @app.task
    async def other() -> None: ...

    async def scenario() -> None:
        job = await order.enqueue()
        async with app.worker() as worker:
            await app.log.wait(events.RunEnded, outcome="suspended")
            view = await job.view()
            assert view is not None
            assert (view.state, view.locked_by, view.attempt, worker.running) == (State.SUSPENDED, None, 0, 0)
            await other.enqueue()
            await app.log.wait(events.RunSucceeded, task="other")
            beats = app.faults.calls["heartbeat_jobs"]
            await asyncio.sleep(6 * 3600)
            assert app.faults.calls["heartbeat_jobs"] == beats
            await app.log.wait(events.RunSucceeded, task="order")
        assert await app.outcomes("order") == ["suspended", "succeeded"]
        assert [run.steps for run in await app.ledger("order")] == [None, 3]

    harness.run(scenario())
    assert calls == ["before", "after"]
    assert DAY / 2 <= harness.seconds() < DAY / 2 + 1


def test_a_restart_does_not_restart_the_sleep(harness: WorkerHarness) -> None:
    """The wake time is recorded: a worker that comes hours later resumes the function at the same moment."""
    first, second = harness.app(), harness.app()

    async def nap(ctx: Context) -> None:
        await ctx.sleep("pause", "10h")

    first_nap = first.task(nap)
    second.task(nap)

    async def scenario() -> None:
        await first_nap.enqueue()
        async with first.worker():
            await first.log.wait(events.RunEnded, outcome="suspended")
        await asyncio.sleep(4 * 3600)
        async with second.worker():
            await second.log.wait(events.RunSucceeded)

    harness.run(scenario())
    assert 36_000 <= harness.seconds() < 36_001


def test_a_short_sleep_keeps_its_place(harness: WorkerHarness) -> None:
    """To suspend and to be claimed again would cost more; it is recorded with the next step."""
    app = harness.app()

    @app.task
    async def nap(ctx: Context) -> None:
        await ctx.sleep("pause", "300ms")
        await ctx.step("after", lambda: None)

    async def scenario() -> None:
        job = await nap.enqueue()
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        assert await app.outcomes() == ["succeeded"]
        assert (await steps_of(app, job))["pause"].state is StepState.DONE

    harness.run(scenario())
    assert 0.3 <= harness.seconds() < 0.4


@pytest.mark.parametrize("length", ["0s", "1us"])
def test_no_sleep_at_all(harness: WorkerHarness, length: str) -> None:
    """A length of zero is over at once."""
    app = harness.app()

    @app.task
    async def nap(ctx: Context) -> None:
        await ctx.sleep("pause", length)

    async def scenario() -> None:
        await nap.enqueue()
        await app.drain()
        assert await app.outcomes() == ["succeeded"]

    harness.run(scenario())


def test_several_sleeps_at_once_wake_at_the_earliest(harness: WorkerHarness) -> None:
    """Each branch goes on at its own time."""
    app = harness.app()
    woken: list[Any] = []

    @app.task
    async def naps(ctx: Context) -> None:
        async def nap(name: str, length: str) -> None:
            await ctx.sleep(name, length)
            await ctx.step(f"woken:{name}", lambda: woken.append((name, round(harness.seconds()))))

        await asyncio.gather(nap("long", "3h"), nap("short", "1h"), nap("middle", "2h"))

    async def scenario() -> None:
        await naps.enqueue()
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        assert await app.outcomes() == ["suspended"] * 3 + ["succeeded"]

    harness.run(scenario())
    assert woken == [("short", 3600), ("middle", 7200), ("long", 10800)]


@pytest.mark.parametrize("length", [0.5, 7.0, 20.0])
def test_a_sleep_beside_a_working_step_ends_at_its_time(harness: WorkerHarness, length: float) -> None:
    """While a step works the run cannot be suspended: the sleep ends on time all the same."""
    app = harness.app()
    woken: list[Any] = []

    @app.task
    async def both(ctx: Context) -> None:
        async def nap() -> None:
            await ctx.sleep("nap", f"{length}s")
            woken.append(harness.seconds())

        await asyncio.gather(ctx.step("work", asyncio.sleep, 100), nap())

    async def scenario() -> None:
        await both.enqueue()
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        assert await app.outcomes() == ["succeeded"]

    harness.run(scenario())
    assert length <= woken[0] < length + 0.1


def test_a_timeout_bounds_a_run_between_suspensions(harness: WorkerHarness) -> None:
    """Time asleep does not count: the task's timeout is one run's."""
    app = harness.app()

    @app.task(timeout="1m", max_attempts=1)
    async def order(ctx: Context) -> str:
        for number in range(3):
            await ctx.step(f"work:{number}", asyncio.sleep, 40)
            await ctx.sleep(f"pause:{number}", "1h")
        return "done"

    async def scenario() -> None:
        await order.enqueue()
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        assert await result_of(app) == '"done"'

    harness.run(scenario())


def test_the_next_slot_counts_from_the_first_claim(harness: WorkerHarness) -> None:
    """`every` is not moved by suspensions: a function that sleeps for 90 minutes of 2 hours keeps its rhythm."""
    app = harness.app()
    begun: list[Any] = []

    @app.task(every="2h")
    async def report(ctx: Context) -> None:
        await ctx.step("begin", lambda: begun.append(round(harness.seconds())))
        await ctx.sleep("pause", "90m")

    async def scenario() -> None:
        async with app.worker():
            await app.log.wait(events.RunSucceeded, 3)

    harness.run(scenario())
    assert [later - earlier for earlier, later in pairwise(begun)] == [7200, 7200]


def test_progress_survives_suspension(harness: WorkerHarness) -> None:
    """What `ctx.progress` has published stays visible while the function sleeps."""
    app = harness.app()

    @app.task
    async def order(ctx: Context) -> None:
        if ctx.fence == 1:
            await ctx.progress({"paid": True})
        await ctx.sleep("pause", "1h")

    async def scenario() -> None:
        job = await order.enqueue()
        async with app.worker():
            await app.log.wait(events.RunEnded, outcome="suspended")
        view = await job.view()
        assert view is not None
        assert view.progress == '{"paid":true}'

    harness.run(scenario())
