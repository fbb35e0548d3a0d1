"""`ctx.step`: recorded once, found by its name, and its value is always the decoded record."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from datetime import date
from typing import Any

import pytest

from reltask import Context, current_step, events
from tests.worker.durable_helpers import result_of, steps_of
from tests.worker.worker_harness import HarnessApp, WorkerHarness


class Crash(Exception):
    """Ends a run; the next attempt repeats the body."""


@dataclasses.dataclass
class Charge:
    card: str
    at: date


def charged(card: str) -> Charge:
    return Charge(card, date(2026, 1, 1))


def crash_once(ctx: Context) -> None:
    if ctx.fence == 1:
        raise Crash


async def finish(app: HarnessApp, count: int = 1) -> None:
    async with app.worker():
        await app.log.wait(events.RunSucceeded, count)


def test_a_recorded_step_does_not_run_again(harness: WorkerHarness) -> None:
    """The next attempt returns what the first one recorded."""
    app = harness.app()
    calls: list[Any] = []

    async def charge(card: str) -> int:
        calls.append(card)
        return len(calls)

    @app.task(backoff="1s")
    async def order(ctx: Context) -> int:
        number = await ctx.step("charge", charge, "visa")
        crash_once(ctx)
        return number

    async def scenario() -> None:
        await order.enqueue()
        await finish(app)
        assert (await app.outcomes(), await result_of(app), calls) == (["failed", "succeeded"], "1", ["visa"])

    harness.run(scenario())


@pytest.mark.parametrize("kind", ["sync", "async", "lambda", "partial", "method", "object"])
def test_any_callable_is_a_step(harness: WorkerHarness, kind: str) -> None:
    """`def`, `async def`, lambdas, partials, methods and objects with `__call__`."""
    app = harness.app()

    class Adder:
        def add(self, a: int, b: int) -> int:
            return a + b

        def __call__(self, a: int, b: int) -> int:
            return a + b

    def add(a: int, b: int) -> int:
        return a + b

    async def add_later(a: int, b: int) -> int:
        return a + b

    functions: dict[str, Any] = {
        "sync": add,
        "async": add_later,
        "lambda": lambda a, b: a + b,
        "partial": functools.partial(add_later),
        "method": Adder().add,
        "object": Adder(),
    }

    @app.task(max_attempts=1)
    async def total(ctx: Context) -> int:
        return int(await ctx.step("add", functions[kind], 1, b=2))

    async def scenario() -> None:
        await total.enqueue()
        await finish(app)
        assert await result_of(app) == "3"

    harness.run(scenario())


def test_the_value_is_the_decoded_record_the_first_time_too(harness: WorkerHarness) -> None:
    """It is equal to what the function returned, by its annotation, and is another object in every run."""
    app = harness.app()
    seen: list[Any] = []
    made: list[Any] = []

    def charge() -> Charge:
        charge = charged("visa")
        made.append(charge)
        return charge

    @app.task(backoff="1s")
    async def order(ctx: Context) -> None:
        seen.append(await ctx.step("charge", charge))
        crash_once(ctx)

    async def scenario() -> None:
        await order.enqueue()
        await finish(app)

    harness.run(scenario())
    assert (seen, len(made)) == ([charged("visa")] * 2, 1)
    assert seen[0] is not made[0]


def test_a_recorded_null_is_a_record(harness: WorkerHarness) -> None:
    """A step that returned nothing does not run again."""
    app = harness.app()
    calls: list[Any] = []

    @app.task(backoff="1s")
    async def order(ctx: Context) -> None:
        value: object = await ctx.step("notify", calls.append, 1)
        assert value is None
        crash_once(ctx)

    async def scenario() -> None:
        job = await order.enqueue()
        await finish(app)
        assert (await steps_of(app, job))["notify"].value == "null"

    harness.run(scenario())
    assert calls == [1]


def test_repeated_names_are_counted(harness: WorkerHarness) -> None:
    """The second `label` is recorded as `label#2`, and found again under that name."""
    app = harness.app()
    calls: list[Any] = []

    def label(number: int) -> int:
        calls.append(number)
        return number

    @app.task(backoff="1s")
    async def order(ctx: Context) -> list[int]:
        numbers = [await ctx.step("label", label, number) for number in (7, 8, 9)]
        crash_once(ctx)
        return numbers

    async def scenario() -> None:
        job = await order.enqueue()
        await finish(app)
        assert sorted(await steps_of(app, job)) == ["label", "label#2", "label#3"]
        assert await result_of(app) == "[7,8,9]"

    harness.run(scenario())
    assert calls == [7, 8, 9]


def test_steps_may_be_inserted_reordered_and_renamed(harness: WorkerHarness) -> None:
    """A step is found by its name alone; only a new name runs, and a record that is never asked for is reported."""
    app = harness.app()
    calls: list[Any] = []
    plans = {1: ["a", "b", "old"], 2: ["b", "new", "a"]}

    @app.task(backoff="1s")
    async def order(ctx: Context) -> None:
        for name in plans[ctx.fence]:
            await ctx.step(name, calls.append, name)
        crash_once(ctx)

    async def scenario() -> None:
        await order.enqueue()
        await finish(app)

    harness.run(scenario())
    assert calls == ["a", "b", "old", "new"]
    assert [event.steps for event in app.log.of(events.StepsNotAsked)] == [["old"]]
    assert app.log.of(events.StepChanged) == []


@pytest.mark.parametrize("change", ["arguments", "function"])
def test_a_replay_with_another_call_is_reported(harness: WorkerHarness, change: str) -> None:
    """The record is returned all the same: a new meaning needs a new name."""
    app = harness.app()

    def one(number: int) -> int:
        return number

    def other(number: int) -> int:
        return -number

    @app.task(backoff="1s")
    async def order(ctx: Context) -> int:
        again = ctx.fence > 1
        same = await ctx.step("same", one, 5)
        number = await ctx.step(
            "changed", other if again and change == "function" else one, 2 if again and change == "arguments" else 1
        )
        crash_once(ctx)
        return same + number

    async def scenario() -> None:
        await order.enqueue()
        await finish(app)
        assert await result_of(app) == "6"

    harness.run(scenario())
    assert [event.step for event in app.log.of(events.StepChanged)] == ["changed"]


def test_the_idempotency_key_is_the_same_in_every_attempt(harness: WorkerHarness) -> None:
    """It names job, slot, step and repetition, however often the function is called; another step has another."""
    app = harness.app()
    keys: list[Any] = []

    def charge() -> None:
        step = current_step()
        keys.append((step.name, step.idempotency_key))
        if len(keys) in (1, 2):
            raise Crash

    @app.task(backoff="1s")
    async def order(ctx: Context) -> None:
        await ctx.using(attempts=2, backoff="0s").step("charge", charge)
        await ctx.step("charge", charge)

    async def scenario() -> None:
        job = await order.enqueue()
        await finish(app)
        assert [name for name, _ in keys] == ["charge", "charge", "charge", "charge#2"]
        assert [key for _, key in keys] == [f"{job.id}:1:charge"] * 3 + [f"{job.id}:1:charge#2"]

    harness.run(scenario())


def test_replays_are_quiet(harness: WorkerHarness, caplog: pytest.LogCaptureFixture) -> None:
    """`ctx.replaying` is true until the first call that is not recorded, and `ctx.logger` says nothing meanwhile."""
    app = harness.app()
    seen: list[Any] = []

    @app.task(backoff="1s")
    async def order(ctx: Context) -> None:
        for name in ("a", "b"):
            seen.append((ctx.fence, name, ctx.replaying))
            ctx.logger.warning("before %s", name)
            await ctx.step(name, lambda: None)
        crash_once(ctx)
        ctx.logger.warning("at last")

    async def scenario() -> None:
        await order.enqueue()
        await finish(app)

    with caplog.at_level(logging.WARNING, "reltask.task.order"):
        harness.run(scenario())
    assert seen == [(1, "a", False), (1, "b", False), (2, "a", True), (2, "b", True)]
    said = [record.message for record in caplog.records if record.message.startswith(("before", "at"))]
    assert said == ["before a", "before b", "at last"]


def test_a_step_that_is_never_asked_for_does_not_silence_the_rest(
    harness: WorkerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """After the first call that is new, the function is heard again."""
    app = harness.app()

    @app.task(backoff="1s")
    async def order(ctx: Context) -> None:
        await ctx.step("old" if ctx.fence == 1 else "new", lambda: None)
        ctx.logger.warning("run %d", ctx.fence)
        crash_once(ctx)

    async def scenario() -> None:
        await order.enqueue()
        await finish(app)

    with caplog.at_level(logging.WARNING, "reltask.task.order"):
        harness.run(scenario())
    assert [record.message for record in caplog.records if record.message.startswith("run")] == ["run 1", "run 2"]


def test_a_slot_has_its_own_steps(harness: WorkerHarness) -> None:
    """A recurring function has one slot at a time; the next one starts without records, and the old ones stay."""
    app = harness.app()
    calls: list[Any] = []

    @app.task(every="1h")
    async def report(ctx: Context) -> None:
        await ctx.step("send", calls.append, ctx.slot_no)
        await ctx.sleep("pause", "90m")
        await ctx.step("close", calls.append, -ctx.slot_no)

    async def scenario() -> None:
        await finish(app, 2)
        runs = (await app.ledger())[:4]
        assert [(run.slot_no, run.outcome) for run in runs] == [
            (slot, outcome) for slot in (1, 2) for outcome in ("suspended", "succeeded")
        ]
        assert [sorted(await steps_of(app, runs[0].job_id, slot)) for slot in (1, 2)] == [
            ["close", "pause", "send"]
        ] * 2

    harness.run(scenario())
    assert calls[:4] == [1, -1, 2, -2]


@pytest.mark.slow
def test_a_thousand_steps_are_read_by_one_statement(harness: WorkerHarness) -> None:
    """Long functions are replayed from one query; a run whose slot has no steps sends none."""
    app = harness.app()
    calls: list[Any] = []

    @app.task(backoff="1s")
    async def work(ctx: Context) -> None:
        for number in range(1_000):
            await ctx.step("one", calls.append, number)
        crash_once(ctx)

    async def scenario() -> None:
        await work.enqueue()
        await finish(app)
        assert app.faults.calls["read_steps"] == 1

    harness.run(scenario())
    assert calls == list(range(1_000))


def test_steps_that_end_together_are_recorded_together(harness: WorkerHarness) -> None:
    """A hundred steps of a `gather` need one statement, not a hundred."""
    app = harness.app()

    @app.task
    async def work(ctx: Context) -> None:
        await asyncio.gather(*(ctx.step(f"n:{number}", lambda: None) for number in range(100)))

    async def scenario() -> None:
        job = await work.enqueue()
        await finish(app)
        assert len(await steps_of(app, job)) == 100
        assert app.faults.calls["record_steps"] <= 2

    harness.run(scenario())
