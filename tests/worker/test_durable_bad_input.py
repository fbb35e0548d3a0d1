"""Durable calls that cannot work: each a clear error, and nothing is lost or run for nothing."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from reltask import Context, ProcessContext, current_step, events
from reltask.errors import DeclarationError, UsageError
from reltask.model.job import State
from reltask.producer.signal import Signal
from reltask.worker.child import ProcessContext as ChildContext
from tests.worker.durable_helpers import result_of, steps_of
from tests.worker.worker_harness import HarnessApp, WorkerHarness

Body = Callable[[Context, list[int]], Awaitable[Any]]


class Unreadable:
    """A class that no JSON can become."""


@dataclasses.dataclass
class Point:
    x: int


async def failure(app: HarnessApp, body: Body, ran: list[int]) -> str:
    """Run this body; return the error of its only run, after which the job is dead."""

    @app.task(max_attempts=1)
    async def bad(ctx: Context) -> None:
        await body(ctx, ran)

    await bad.enqueue()
    async with app.worker():
        failed = await app.log.wait(events.RunFailed)
    assert (await app.one_job()).state is State.DEAD
    return failed.error


async def twice(ctx: Context, ran: list[int]) -> None:
    await asyncio.gather(ctx.step("x", asyncio.sleep, 1), ctx.step("x", ran.append, 1))


async def in_a_step(ctx: Context, ran: list[int]) -> None:
    await ctx.step("outer", lambda: ctx.step("inner", ran.append, 1))


async def wait_in_a_step(ctx: Context, ran: list[int]) -> None:
    async def wait() -> None:
        await ctx.wait_for("go")
        ran.append(1)

    await ctx.step("outer", wait)


async def in_a_transaction(ctx: Context, ran: list[int]) -> None:
    async with ctx.transaction(complete=False):
        await ctx.step("inner", ran.append, 1)


async def transact_in_a_transaction(ctx: Context, ran: list[int]) -> None:
    async def write(_: Any) -> None:
        ran.append(1)

    async with ctx.transaction(complete=False):
        await ctx.transact("inner", write)


async def completion_in_a_step(ctx: Context, ran: list[int]) -> None:
    async def complete() -> None:
        async with ctx.transaction():
            ran.append(1)

    await ctx.step("outer", complete)


async def another_kind(ctx: Context, ran: list[int]) -> None:
    await ctx.step("x", lambda: None)
    ctx._run.durable._counts.clear()  # as a later run does
    await ctx.sleep("x", "1s")
    ran.append(1)


def elsewhere(work: Coroutine[Any, Any, Any]) -> None:
    """Run this in a loop of its own, in another thread, and raise what it raises."""
    with ThreadPoolExecutor() as pool:
        pool.submit(asyncio.run, work).result()


async def in_another_loop(ctx: Context, ran: list[int]) -> None:
    elsewhere(ctx.step("x", ran.append, 1))


async def transact_in_another_loop(ctx: Context, ran: list[int]) -> None:
    async def write(_: Any) -> None:
        ran.append(1)

    elsewhere(ctx.transact("x", write))


async def wait_in_another_loop(ctx: Context, _: list[int]) -> None:
    elsewhere(ctx.sleep("x", "1h"))


MISTAKES: dict[str, tuple[Body, str]] = {
    "empty name": (lambda ctx, ran: ctx.step("", ran.append, 1), "needs a name"),
    "no string": (lambda ctx, ran: ctx.step(5, ran.append, 1), "needs a name"),  # type: ignore[call-overload]
    "long name": (lambda ctx, ran: ctx.step("x" * 201, ran.append, 1), "has 201 characters"),
    "number sign": (lambda ctx, ran: ctx.step("x#2", ran.append, 1), "contains #"),
    "control character": (lambda ctx, ran: ctx.step("x\n", ran.append, 1), "contains #"),
    "two at once": (twice, "under way at once"),
    "a coroutine": (lambda ctx, _: ctx.step("x", asyncio.sleep(1)), "got coroutine instead of a function"),  # type: ignore[call-overload]
    "no function": (lambda ctx, _: ctx.step("x", 5), "got int instead of a function"),  # type: ignore[call-overload]
    "in a step": (in_a_step, "inside the step 'outer'"),
    "a wait in a step": (wait_in_a_step, "inside the step 'outer'"),
    "in a transaction": (in_a_transaction, "inside an open transaction"),
    "transact in a transaction": (transact_in_a_transaction, "inside an open transaction"),
    "a completion in a step": (completion_in_a_step, "inside the step 'outer'"),
    "in another loop": (in_another_loop, "in another event loop"),
    "transact in another loop": (transact_in_another_loop, "in another event loop"),
    "a wait in another loop": (wait_in_another_loop, "in another event loop"),
    "another kind of call": (another_kind, "is recorded as a step, and is a sleep now"),
    "negative sleep": (lambda ctx, _: ctx.sleep("x", "-1s"), "is not a duration"),
    "absurd sleep": (lambda ctx, _: ctx.sleep("x", "40000d"), "too long"),
    "sleep without a unit": (lambda ctx, _: ctx.sleep("x", 5), "is not a duration"),  # type: ignore[arg-type]
    "negative timeout": (lambda ctx, _: ctx.wait_for("x", timeout="-1s"), "is not a duration"),
    "signal without a name": (lambda ctx, _: ctx.wait_for(""), "1 to 200 characters"),
    "a wait without a name": (lambda ctx, _: ctx.wait_for("go", name=""), "needs a name"),
    "no signal": (lambda ctx, _: ctx.wait_for(5), "is a string, not int"),  # type: ignore[call-overload]
    "no attempts": (lambda ctx, ran: ctx.using(attempts=0).step("x", ran.append, 1), "at least once"),
    "no call": (lambda ctx, _: ctx.run("x", 5), "takes calls, not int"),  # type: ignore[arg-type]
    "no list": (lambda ctx, _: ctx.run_all("x", 5), "takes a list of calls, not int"),  # type: ignore[arg-type]
    "nothing to start": (lambda ctx, _: ctx.start("x", None), "takes calls, not NoneType"),  # type: ignore[arg-type]
    "an unreadable result": (lambda ctx, _: ctx.step("x", unreadable), "Unreadable cannot be read from JSON"),
}


def unreadable() -> list[Unreadable]:
    raise AssertionError("the annotation is checked before the function runs")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_fails_the_run_with_a_clear_error(harness: WorkerHarness, mistake: str) -> None:
    """Nothing runs for nothing, and the ledger says what to write instead."""
    body, words = MISTAKES[mistake]
    app = harness.app()
    ran: list[Any] = []
    assert words in harness.run(failure(app, body, ran))
    assert ran == []


def test_a_refused_call_does_not_keep_the_function_awake(harness: WorkerHarness) -> None:
    """The body catches the error and waits: it is suspended as usual."""
    app = harness.app()

    @app.task
    async def order(ctx: Context) -> str:
        for name, call in (("", lambda: None), ("x", 5)):
            with pytest.raises(UsageError):
                await ctx.step(name, call)  # type: ignore[call-overload]
        no_call: Any = 5
        for bad in (ctx.run("x", no_call), ctx.start("x", no_call)):
            with pytest.raises(UsageError):
                await bad
        await ctx.sleep("nap", "1h")
        return "done"

    async def scenario() -> None:
        await order.enqueue()
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        assert (await app.outcomes(), await result_of(app)) == (["suspended", "succeeded"], '"done"')

    harness.run(scenario())


def object_without_annotation():  # type: ignore[no-untyped-def]  # noqa: ANN201 - the point of it
    return Point(1)


def annotated_wrongly() -> int:
    return "one"  # type: ignore[return-value]


def too_large() -> str:
    return "x" * 2_000_000


def not_a_number() -> float:
    return float("nan")


@pytest.mark.parametrize("kind", ["step", "transact"])
@pytest.mark.parametrize("catch", [True, False])
@pytest.mark.parametrize("function", [object_without_annotation, annotated_wrongly, too_large, not_a_number])
def test_a_value_that_cannot_be_recorded_makes_the_job_dead(
    harness: WorkerHarness, function: Callable[[], Any], kind: str, *, catch: bool
) -> None:
    """At once, whatever its attempts and even if the body catches it: to run the step again would repeat its effect."""
    app = harness.app()
    calls: list[Any] = []

    @app.task(max_attempts=5)
    async def order(ctx: Context) -> str:
        def effect() -> Any:
            calls.append(1)
            return function()

        async def written(_: Any) -> Any:
            return effect()

        for one in (effect, written):
            one.__annotations__ = function.__annotations__
        steps = ctx.using(attempts=3, backoff="0s")
        try:
            await (steps.step("x", effect) if kind == "step" else steps.transact("x", written))
        except Exception:
            if not catch:
                raise
        await ctx.step("after", calls.append, 2)
        return "went on"

    async def scenario() -> None:
        job = await order.enqueue()
        async with app.worker():
            failed = await app.log.wait(events.RunFailed)
            assert failed.dead
            await asyncio.sleep(10_000)
        assert "effect" in failed.error or "written" in failed.error
        assert await steps_of(app, job) == {}

    harness.run(scenario())
    assert calls == [1]


def test_a_step_after_the_completion_is_refused(harness: WorkerHarness) -> None:
    """The slot has ended: nothing can be recorded in it, so the step does not run. The success stays."""
    app = harness.app()
    calls: list[Any] = []

    @app.task
    async def order(ctx: Context) -> None:
        async with ctx.transaction():
            pass
        await ctx.step("after", calls.append, 1)

    async def scenario() -> None:
        await order.enqueue()
        async with app.worker():
            error = await app.log.wait(events.ErrorAfterCompletion)
        assert "completed by an earlier transaction" in error.error
        assert await app.outcomes() == ["succeeded"]

    harness.run(scenario())
    assert calls == []


def test_current_step_is_for_steps() -> None:
    """Elsewhere there is none."""
    with pytest.raises(UsageError, match="outside of a step"):
        current_step()


@pytest.mark.parametrize("type", [Unreadable, list[Unreadable]])
def test_a_signal_needs_a_type_that_json_can_become(type: Any) -> None:  # noqa: A002
    """Refused where it is declared."""
    with pytest.raises(DeclarationError, match="cannot be read from JSON"):
        Signal("x", type)


def steps_in_a_process(ctx: ProcessContext) -> None:
    ctx.step("x", print)  # type: ignore[attr-defined]


def sleeps_in_a_nested_function(ctx: ProcessContext, seconds: int = 1) -> None:
    def inside() -> None:
        if seconds:
            ctx.sleep("x", "1d")  # type: ignore[attr-defined]

    inside()


def waits_with_options(ctx: ProcessContext, attempts: int) -> None:
    ctx.using(attempts=attempts).step("x", print)  # type: ignore[attr-defined]


def does_nothing_durable(ctx: ProcessContext, step: str) -> None:
    step.split()
    ctx.progress(step)
    asyncio.run(asyncio.sleep(0))


@pytest.mark.parametrize(
    ("function", "name"),
    [(steps_in_a_process, "step"), (sleeps_in_a_nested_function, "sleep"), (waits_with_options, "using")],
)
def test_durable_calls_in_a_child_process_are_refused_by_the_decorator(
    harness: WorkerHarness, function: Callable[..., Any], name: str
) -> None:
    """A child process has no connection to record them: the mistake shows when the module is imported."""
    with pytest.raises(DeclarationError, match=rf"ctx\.{name}\(\) cannot be called in a child process"):
        harness.app().task(isolation="process")(function)


def test_other_functions_run_in_child_processes(harness: WorkerHarness) -> None:
    """Equal names of other objects are no durable calls."""
    harness.app().task(isolation="process")(does_nothing_durable)


def test_a_hidden_durable_call_in_a_child_process_is_refused_there() -> None:
    """By a clear error, and other unknown names by the usual one."""
    facts = {
        "task": "t",
        "job_id": "0" * 32,
        "key": None,
        "slot_no": 1,
        "nominal_time": "2026-01-01T00:00:00+00:00",
        "attempt": 1,
        "fence": 1,
        "idempotency_key": "k",
        "last_progress": None,
        "worker": "w",
        "headers": None,
        "queue": "default",
    }
    context: Any = ChildContext(facts, lambda _: None)
    with pytest.raises(AttributeError, match="cannot be called in a child process"):
        context.run_all("x", [])
    with pytest.raises(AttributeError, match="has no attribute 'stepp'"):
        context.stepp  # noqa: B018
