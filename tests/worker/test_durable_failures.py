"""Steps that fail: what the body sees, what is recorded, how they are tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from reltask import Cancel, Context, Retry, Snooze, events
from reltask.errors import Again, StepFailed
from reltask.model.durable import StepState
from reltask.model.job import State
from tests.worker.durable_helpers import result_of, steps_of
from tests.worker.worker_harness import HarnessApp, WorkerHarness


class Declined(Exception):
    """What a step raises."""


def failing(calls: list[int], times: int) -> Callable[[], int]:
    """A function that fails this many times, and then returns how often it was called."""

    def charge() -> int:
        calls.append(len(calls))
        if len(calls) <= times:
            raise Declined(f"no. {len(calls)}")
        return len(calls)

    return charge


async def finish(app: HarnessApp) -> None:
    async with app.worker():
        await app.log.wait(events.RunSucceeded)


def test_a_failure_arrives_as_step_failed_with_its_cause(harness: WorkerHarness) -> None:
    """Kind and message as the record has them; the first time with the original as its cause."""
    app = harness.app()
    seen: list[Any] = []

    @app.task(max_attempts=1)
    async def order(ctx: Context) -> None:
        try:
            await ctx.step("charge", failing([], 9))
        except StepFailed as error:
            seen.append((error.step, error.kind, error.error, type(error.__cause__)))

    async def scenario() -> None:
        await order.enqueue()
        await finish(app)

    harness.run(scenario())
    assert seen == [("charge", "Declined", "no. 1", Declined)]


def test_a_failure_let_through_fails_the_run_and_the_step_runs_again(harness: WorkerHarness) -> None:
    """Nothing is recorded: the next attempt calls the function again. The traceback shows the original."""
    app = harness.app()
    calls: list[Any] = []

    @app.task(backoff="1s")
    async def order(ctx: Context) -> int:
        return await ctx.step("charge", failing(calls, 2))

    async def scenario() -> None:
        await order.enqueue()
        await finish(app)
        first, *_ = runs = await app.ledger()
        assert [run.outcome for run in runs] == ["failed", "failed", "succeeded"]
        assert "Declined: no. 1" in (first.error or "")
        assert await result_of(app) == "3"

    harness.run(scenario())


def test_a_caught_failure_is_recorded_and_raised_again_at_replays(harness: WorkerHarness) -> None:
    """A saga: the compensation is recorded together with the failure, so every later run takes the same path."""
    app = harness.app()
    calls: list[Any] = []
    path: list[Any] = []

    @app.task(backoff="1s")
    async def order(ctx: Context) -> str:
        try:
            await ctx.step("charge", failing(calls, 1))
        except StepFailed as error:
            path.append((error.step, error.kind, error.error))
            await ctx.step("refund", lambda: None)
        if ctx.fence == 1:
            raise Declined("after the compensation")
        return "refunded"

    async def scenario() -> None:
        job = await order.enqueue()
        await finish(app)
        assert (await steps_of(app, job))["charge"].state is StepState.FAILED

    harness.run(scenario())
    assert (path, calls) == ([("charge", "Declined", "no. 1")] * 2, [0])


def test_a_caught_failure_is_recorded_before_the_function_is_suspended(harness: WorkerHarness) -> None:
    """It is recorded with the wait that follows it."""
    app = harness.app()
    calls: list[Any] = []

    @app.task
    async def order(ctx: Context) -> str:
        try:
            await ctx.step("charge", failing(calls, 1))
        except StepFailed:
            await ctx.sleep("pause", "1d")
            return "failed"
        return "succeeded"

    async def scenario() -> None:
        await order.enqueue()
        await finish(app)
        assert await result_of(app) == '"failed"'

    harness.run(scenario())
    assert calls == [0]


@pytest.mark.parametrize("style", ["gather", "task group"])
@pytest.mark.parametrize("turns", [0, 1, 2])
@pytest.mark.parametrize("first", [True, False])
def test_a_failure_that_a_sibling_outlives_is_not_recorded(
    harness: WorkerHarness, style: str, turns: int, *, first: bool
) -> None:
    """A step that begins in another task shows nothing about the body, which may let the failure through."""
    app = harness.app()
    calls: list[Any] = []

    @app.task(backoff="1s")
    async def order(ctx: Context) -> int:
        async def quick() -> int:
            for _ in range(turns):
                await asyncio.sleep(0)
            return int(await ctx.step("quick", lambda: 0))

        both = [ctx.step("charge", failing(calls, 1)), quick()][:: 1 if first else -1]
        if style == "gather":
            return max(await asyncio.gather(*both))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in both]
        return max(task.result() for task in tasks)

    async def scenario() -> None:
        await order.enqueue()
        await finish(app)
        assert (await app.outcomes(), await result_of(app)) == (["failed", "succeeded"], "2")

    harness.run(scenario())


def test_a_sibling_that_goes_on_while_the_body_cleans_up_shows_nothing(harness: WorkerHarness) -> None:
    """`gather` lets its other tasks go on: their next call is not the body's, however long the body takes to end."""
    app = harness.app()

    async def sibling(ctx: Context) -> None:
        await ctx.step("first", asyncio.sleep, 0.1)
        await ctx.step("second", asyncio.sleep, 0.1)

    @app.task(backoff="1s")
    async def order(ctx: Context) -> None:
        try:
            await asyncio.gather(ctx.step("charge", failing([], 1)), sibling(ctx))
        finally:
            await asyncio.sleep(1)

    async def scenario() -> None:
        job = await order.enqueue()
        async with app.worker():
            await app.log.wait(events.RunFailed)
            assert list(await steps_of(app, job)) == ["first", "second"]

    harness.run(scenario())


@pytest.mark.parametrize("style", ["gather", "task group", "in a helper"])
def test_a_failure_of_a_sibling_that_is_caught_is_recorded(harness: WorkerHarness, style: str) -> None:
    """The compensation begins in another task than the failure: both are recorded together all the same."""
    app = harness.app()
    calls: list[Any] = []

    async def both(ctx: Context) -> bool:
        steps = [ctx.step("charge", failing(calls, 1)), ctx.step("quick", lambda: 0)]
        try:
            if style == "task group":
                async with asyncio.TaskGroup() as group:
                    for step in steps:
                        group.create_task(step)
            else:
                await asyncio.gather(*steps)
        except (StepFailed, ExceptionGroup):
            return False
        return True

    @app.task(backoff="1s")
    async def order(ctx: Context) -> str:
        went_well = await (asyncio.create_task(both(ctx)) if style == "in a helper" else both(ctx))
        if not went_well:
            await ctx.step("refund", lambda: None)
        if ctx.fence == 1:
            raise Declined
        return "charged" if went_well else "refunded"

    async def scenario() -> None:
        await order.enqueue()
        await finish(app)
        assert await result_of(app) == '"refunded"'

    harness.run(scenario())
    assert calls == [0]


def test_using_tries_again_in_place(harness: WorkerHarness) -> None:
    """Short waits keep the place: one run, no suspension."""
    app = harness.app()
    calls: list[Any] = []

    @app.task(max_attempts=1)
    async def order(ctx: Context) -> int:
        return await ctx.using(attempts=3, backoff="100ms").step("charge", failing(calls, 2))

    async def scenario() -> None:
        job = await order.enqueue()
        await finish(app)
        assert (await app.outcomes(), await result_of(app)) == (["succeeded"], "3")
        assert (await steps_of(app, job))["charge"].attempt == 3

    harness.run(scenario())
    assert 0.2 <= harness.seconds() < 0.4


def test_using_tries_again_by_suspension(harness: WorkerHarness) -> None:
    """Long waits are recorded with the attempt, and the function is suspended: no attempt of the job is used."""
    app = harness.app()
    calls: list[Any] = []
    times: list[Any] = []
    charge = failing(calls, 2)

    def timed() -> int:
        times.append(round(harness.seconds()))
        return charge()

    @app.task(max_attempts=1)
    async def order(ctx: Context) -> int:
        return await ctx.using(attempts=3, backoff="1h").step("charge", timed)

    async def scenario() -> None:
        job = await order.enqueue()
        await finish(app)
        assert (await app.outcomes(), await result_of(app)) == (["suspended", "suspended", "succeeded"], "3")
        assert (await steps_of(app, job))["charge"].attempt == 3

    harness.run(scenario())
    assert times == [0, 3600, 7200]


def test_the_last_attempt_of_a_step_fails(harness: WorkerHarness) -> None:
    """After `attempts` calls the step fails, in place or after suspensions."""
    app = harness.app()
    calls: list[Any] = []

    @app.task(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.using(attempts=3, backoff="1m").step("charge", failing(calls, 9))

    async def scenario() -> None:
        await order.enqueue()
        async with app.worker():
            await app.log.wait(events.RunFailed, dead=True)
        assert await app.outcomes() == ["suspended", "suspended", "failed"]

    harness.run(scenario())
    assert calls == [0, 1, 2]


def test_a_step_that_takes_too_long_fails(harness: WorkerHarness) -> None:
    """`timeout=` bounds each attempt of a step."""
    app = harness.app()

    @app.task
    async def order(ctx: Context) -> str:
        try:
            await ctx.using(timeout="5s").step("slow", asyncio.sleep, 60)
        except StepFailed as error:
            return error.kind
        return "in time"

    async def scenario() -> None:
        await order.enqueue()
        await finish(app)
        assert await result_of(app) == '"TimeoutError"'

    harness.run(scenario())
    assert harness.seconds() < 10


def test_progress_sets_the_attempts_back(harness: WorkerHarness) -> None:
    """Limits and pauses count from the last recorded step: a function with many steps outlives as many failures."""
    app = harness.app()
    failed: list[Any] = []

    @app.task(max_attempts=2, backoff="10s")
    async def order(ctx: Context) -> None:
        for number in range(4):
            await ctx.step(f"n:{number}", lambda: None)
            if number not in failed:
                failed.append(number)
                raise Declined(number)

    async def scenario() -> None:
        await order.enqueue()
        await finish(app)
        assert await app.outcomes() == ["failed"] * 4 + ["succeeded"]

    harness.run(scenario())
    assert [(event.attempt, event.dead) for event in app.log.of(events.RunFailed)] == [(1, False)] * 4


def test_without_progress_the_limit_counts(harness: WorkerHarness) -> None:
    """A replay records nothing: the job is dead after its attempts."""
    app = harness.app()

    @app.task(max_attempts=3, backoff="1s")
    async def order(ctx: Context) -> None:
        await ctx.step("charge", lambda: None)
        raise Declined

    async def scenario() -> None:
        await order.enqueue()
        async with app.worker():
            await app.log.wait(events.RunFailed, dead=True)
        assert await app.outcomes() == ["failed"] * 3

    harness.run(scenario())


@pytest.mark.parametrize("kind", ["cancel", "snooze", "retry"])
def test_a_step_may_choose_the_outcome_of_its_run(harness: WorkerHarness, kind: str) -> None:
    """`Cancel`, `Snooze` and `Retry` mean the same inside a step: they are no failure of it."""
    app = harness.app()
    signals = {"cancel": Cancel("no"), "snooze": Snooze("1h"), "retry": Retry(delay=timedelta(hours=1))}
    outcomes = {"cancel": "cancelled", "snooze": "snoozed", "retry": "failed"}

    def choose() -> None:
        raise signals[kind]

    @app.task
    async def order(ctx: Context) -> None:
        await ctx.step("choose", choose)

    async def scenario() -> None:
        await order.enqueue()
        await app.drain()
        assert await app.outcomes() == [outcomes[kind]]

    harness.run(scenario())


def test_again_starts_the_next_slot_with_other_arguments(harness: WorkerHarness) -> None:
    """A long loop: each slot has its own steps, and the job keeps its id. The last one returns."""
    app = harness.app()
    seen: list[Any] = []

    @app.task
    async def poll(ctx: Context, cursor: int) -> str:
        seen.append((ctx.slot_no, cursor, ctx.replaying))
        following = await ctx.step("page", lambda: cursor + 10)
        if following < 30:
            raise Again(poll.call(following))
        return "end"

    async def scenario() -> None:
        job = await poll.enqueue(0)
        async with app.worker():
            await app.log.wait(events.RunSucceeded, 3)
        assert [(run.slot_no, run.outcome, run.result) for run in await app.ledger()] == [
            (1, "succeeded", None),
            (2, "succeeded", None),
            (3, "succeeded", '"end"'),
        ]
        assert (await steps_of(app, job, 1))["page"].value == "10"
        assert await job.view() is None

    harness.run(scenario())
    assert seen == [(1, 0, False), (2, 10, False), (3, 20, False)]


@pytest.mark.parametrize("mistake", ["another task", "no call", "recurring"])
def test_again_takes_a_call_of_its_own_task(harness: WorkerHarness, mistake: str) -> None:
    """Anything else is a failure that says so."""
    app = harness.app()

    @app.task
    async def other() -> None: ...

    @app.task(every="1h" if mistake == "recurring" else None, max_attempts=1)
    async def poll() -> None:
        call = {"another task": other.call, "recurring": poll.call}.get(mistake)
        raise Again(5 if call is None else call())

    async def scenario() -> None:
        if mistake != "recurring":
            await poll.enqueue()
        async with app.worker():
            await app.log.wait(events.RunFailed)
        assert (await app.one_job("poll")).state is State.DEAD
        (run,) = await app.ledger()
        assert "Again" in (run.error or "")

    harness.run(scenario())
