"""When a run is suspended: every durable call waits; never while the body has something to do."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from reltask import Context, events
from reltask.errors import StepFailed, UsageError
from reltask.model.job import State
from reltask.worker import parking
from tests.worker.durable_helpers import away, result_of, send, steps_of
from tests.worker.worker_harness import HarnessApp, WorkerHarness


async def finish(app: HarnessApp) -> None:
    async with app.worker():
        await app.log.wait(events.RunSucceeded)


@pytest.mark.parametrize("style", ["gather", "gather with exceptions", "task group", "create_task", "wait", "shield"])
def test_a_step_beside_a_wait_is_recorded_before_the_suspension(harness: WorkerHarness, style: str) -> None:
    """However tasks are started: the step runs once, in the first run, and its value is there after the resumption."""
    app = harness.app()
    calls: list[Any] = []

    async def slow() -> str:
        await asyncio.sleep(30)
        calls.append("slow")
        return "slow"

    @app.task
    async def both(ctx: Context) -> str:
        nap, work = ctx.sleep("nap", "1h"), ctx.step("work", slow)
        if style == "gather":
            return (await asyncio.gather(nap, work))[1]
        if style == "gather with exceptions":
            return str((await asyncio.gather(nap, work, return_exceptions=True))[1])
        if style == "task group":
            async with asyncio.TaskGroup() as group:
                group.create_task(nap)
                working = group.create_task(work)
            return working.result()
        sleeping, working = asyncio.create_task(nap), asyncio.create_task(work)
        if style == "wait":
            await asyncio.wait({sleeping, working})
        elif style == "shield":
            await asyncio.shield(sleeping)
        else:
            await sleeping
        return await working

    async def scenario() -> None:
        await both.enqueue()
        await finish(app)
        assert (await app.outcomes(), await result_of(app)) == (["suspended", "succeeded"], '"slow"')

    harness.run(scenario())
    assert calls == ["slow"]
    assert 3600 <= harness.seconds() < 3601


def test_plain_awaits_beside_a_wait_are_cancelled(harness: WorkerHarness) -> None:
    """What is no durable call does not keep the place; finally blocks run at every suspension."""
    app = harness.app()
    seen: list[Any] = []

    async def plain() -> None:
        try:
            await asyncio.sleep(600)
            seen.append("ended")
        finally:
            seen.append("finally")

    @app.task
    async def both(ctx: Context) -> None:
        await asyncio.gather(plain(), ctx.sleep("nap", "1h"))

    async def scenario() -> None:
        await both.enqueue()
        await finish(app)
        assert await app.outcomes() == ["suspended", "succeeded"]

    harness.run(scenario())
    assert seen == ["finally", "ended", "finally"]


def test_a_step_that_ends_with_the_answer_of_a_look_goes_on(harness: WorkerHarness) -> None:
    """The look that was begun beside a working step may not suspend the body that this step wakes."""
    app = harness.app()
    done: list[Any] = []

    @app.task
    async def order(ctx: Context) -> str:
        other = asyncio.create_task(ctx.wait_for("never"))
        for number in range(40):
            await ctx.step(f"n:{number}", asyncio.sleep, 0.25)
            done.append(number)
        other.cancel()
        return "went on"

    async def scenario() -> None:
        await order.enqueue()
        app.faults.slow["read_waits"] = 0.25  # answers come when a step ends
        await finish(app)
        assert await app.outcomes() == ["succeeded"]

    harness.run(scenario())
    assert done == list(range(40))


def test_a_failure_beside_a_wait_reaches_the_body_first(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through nested task groups it needs several turns of the loop; the run must not be suspended meanwhile."""
    monkeypatch.setattr(parking, "QUIET", 0.0)  # as if every turn took long
    app = harness.app()

    async def bad() -> None:
        raise ValueError("no")

    @app.task(max_attempts=1)
    async def order(ctx: Context) -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(ctx.wait_for("never"))
            async with asyncio.TaskGroup() as inner, asyncio.TaskGroup() as innermost:
                inner.create_task(ctx.wait_for("never either"))
                innermost.create_task(ctx.step("bad", bad))

    async def scenario() -> None:
        await order.enqueue()
        async with app.worker():
            await app.log.wait(events.RunFailed)
        assert await app.outcomes() == ["failed"]

    harness.run(scenario())


@pytest.mark.parametrize("first", ["step", "sleep"])
def test_a_failed_step_beside_a_wait_runs_again_after_it(harness: WorkerHarness, first: str) -> None:
    """`gather(return_exceptions=True)` has not shown the failure to the body: nothing is recorded, nothing is lost."""
    app = harness.app()
    calls: list[Any] = []

    def charge() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("no")
        return len(calls)

    @app.task
    async def order(ctx: Context) -> list[object]:
        both = [ctx.step("charge", charge), ctx.sleep("nap", "1h")]
        outcomes = await asyncio.gather(*both[:: 1 if first == "step" else -1], return_exceptions=True)
        return ["failed" if isinstance(outcome, StepFailed) else outcome for outcome in outcomes]

    async def scenario() -> None:
        await order.enqueue()
        await finish(app)
        assert (await app.outcomes(), await result_of(app)) == (
            ["suspended", "succeeded"],
            "[2,null]" if first == "step" else "[null,2]",
        )

    harness.run(scenario())


@pytest.mark.parametrize("then", ["return", "step", "plain await"])
def test_a_suspension_that_is_swallowed_is_a_clear_failure(harness: WorkerHarness, then: str) -> None:
    """The body cannot be resumed there. Nothing that it does afterwards is recorded; in the end the job is dead."""
    app = harness.app()
    calls: list[Any] = []

    @app.task(max_attempts=2, backoff="1s")
    async def rude(ctx: Context) -> str:
        with contextlib.suppress(BaseException):
            await ctx.sleep("nap", "1h")
        if then == "step":
            await ctx.step("after", calls.append, 1)
        if then == "plain await":
            await asyncio.sleep(1)
        return "went on"

    async def scenario() -> None:
        job = await rude.enqueue()
        async with app.worker():
            failed = await app.log.wait(events.RunFailed, dead=True)
        assert "went on after it was suspended" in failed.error
        assert sorted(await steps_of(app, job)) == ["nap"]
        assert (await app.one_job()).state is State.DEAD

    harness.run(scenario())
    assert calls == []


def test_a_durable_call_in_a_finally_block_is_refused(harness: WorkerHarness) -> None:
    """Such a block runs at every suspension: it says so instead of running the step each time."""
    app = harness.app()
    calls: list[Any] = []

    @app.task(max_attempts=1)
    async def order(ctx: Context) -> None:
        try:
            await ctx.sleep("nap", "1h")
        finally:
            await ctx.step("cleanup", calls.append, 1)

    async def scenario() -> None:
        await order.enqueue()
        async with app.worker():
            failed = await app.log.wait(events.RunFailed)
        assert "went on after it was suspended" in failed.error

    harness.run(scenario())
    assert calls == []


@pytest.mark.parametrize(("seconds", "waiting"), [(0, UsageError), (1, asyncio.CancelledError)])
def test_a_task_left_behind_is_refused_after_the_body_has_ended(
    harness: WorkerHarness, seconds: float, waiting: type[BaseException]
) -> None:
    """A new call, a step that ends too late and a wait: each gets an error, none is recorded, nothing waits on."""
    app = harness.app()
    errors: list[Any] = []
    left: list[asyncio.Task[object]] = []

    async def later(ctx: Context) -> None:
        await asyncio.sleep(5)
        await ctx.step("new", lambda: None)

    async def watched(work: object) -> None:
        try:
            await work  # type: ignore[misc]
        except BaseException as error:
            errors.append(error)
            raise

    @app.task
    async def hasty(ctx: Context) -> None:
        work = (later(ctx), ctx.step("slow", asyncio.sleep, 3), ctx.wait_for("never"))
        left.extend(asyncio.create_task(watched(one)) for one in work)
        await asyncio.sleep(seconds)

    async def scenario() -> None:
        await hasty.enqueue()
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
            await asyncio.wait(left)
        assert await app.outcomes() == ["succeeded"]

    harness.run(scenario())
    assert [type(error) for error in errors] == [waiting, UsageError, UsageError]
    assert all("after the body had ended" in str(error) for error in errors if isinstance(error, UsageError))


def test_steps_that_ended_are_recorded_before_the_run_fails(harness: WorkerHarness) -> None:
    """A sibling's failure cancels the wait for a record that is on its way: the run ends after it is written."""
    app = harness.app()
    calls: list[Any] = []

    async def fail() -> None:
        await asyncio.sleep(1.5)
        raise ValueError("no")

    @app.task(backoff="1s")
    async def both(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("effect", calls.append, 1))
            if ctx.fence == 1:
                group.create_task(fail())

    async def scenario() -> None:
        await both.enqueue()
        app.faults.error, app.faults.verbs = away, {"record_steps"}
        async with app.worker():
            await asyncio.sleep(20)
            assert app.faults.calls["fail_jobs"] == 0
            app.faults.error = None
            await app.log.wait(events.RunSucceeded)
        assert await app.outcomes() == ["failed", "succeeded"]

    harness.run(scenario())
    assert calls == [1]


def test_a_signal_during_a_short_sleep_is_received(harness: WorkerHarness) -> None:
    """A wait in place looks again at the end of it."""
    app = harness.app()

    @app.task
    async def order(ctx: Context) -> object:
        return (await asyncio.gather(ctx.wait_for("go"), ctx.sleep("nap", "900ms")))[0]

    async def scenario() -> None:
        job = await order.enqueue()
        async with app.worker() as worker:
            await asyncio.sleep(0.5)
            await send(app, job, "go", 1, wake=worker)
            await app.log.wait(events.RunSucceeded)
        assert await result_of(app) == "1"

    harness.run(scenario())
    assert harness.seconds() < 1.1
