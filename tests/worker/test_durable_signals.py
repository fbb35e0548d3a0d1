"""`ctx.wait_for`: signals are queued, received in order, once, and noticed at once."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any
from uuid import uuid4

import pytest

from reltask import Again, Context, events
from reltask.errors import ArgumentsError, WaitTimeout
from reltask.model.durable import StepState
from reltask.model.job import State
from reltask.producer.signal import Signal
from tests.worker.durable_helpers import at, result_of, send, signals_of, sound, steps_of
from tests.worker.worker_harness import WorkerHarness


@dataclasses.dataclass
class Decision:
    ok: bool
    by: str


decision = Signal("decision", Decision)


def test_a_signal_wakes_the_function_at_once(harness: WorkerHarness) -> None:
    """It goes on without waiting for a poll, and receives the typed value."""
    app = harness.app()

    @app.task
    async def order(ctx: Context) -> str:
        answer = await ctx.wait_for(decision)
        return f"{type(answer).__name__} {answer.by}"

    async def scenario() -> None:
        job = await order.enqueue()
        async with app.worker() as worker:
            await app.log.wait(events.RunEnded, outcome="suspended")
            await asyncio.sleep(10_000)
            since = harness.seconds()
            assert await send(app, job, decision, Decision(True, "ada"), wake=worker)
            await app.log.wait(events.RunSucceeded)
            assert harness.seconds() - since < 0.1
        assert await result_of(app) == '"Decision ada"'
        assert [signal.consumed_by for signal in await signals_of(app, job)] == ["decision"]

    harness.run(scenario())


def test_a_signal_may_come_before_the_wait(harness: WorkerHarness) -> None:
    """It is kept until the function asks for it: no suspension."""
    app = harness.app()

    @app.task
    async def order(ctx: Context) -> Any:
        return await ctx.wait_for("go")

    async def scenario() -> None:
        job = await order.enqueue()
        await send(app, job, "go", {"n": 1})
        await app.drain()
        assert (await app.outcomes(), await result_of(app)) == (["succeeded"], '{"n":1}')

    harness.run(scenario())


def test_signals_are_received_in_order_and_once(harness: WorkerHarness) -> None:
    """Each wait takes the next one; a signal sent twice with one id counts once; the rest stays."""
    app = harness.app()

    @app.task
    async def order(ctx: Context) -> list[Any]:
        first = await ctx.wait_for("n")
        await ctx.sleep("pause", "1h")
        return [first, await ctx.wait_for("n"), await ctx.wait_for("n", name="third")]

    async def scenario() -> None:
        job = await order.enqueue()
        for number, signal_id in ((1, "a"), (1, "a"), (2, "b"), (3, "c"), (4, "d")):
            assert await send(app, job, "n", number, id=signal_id)
        async with app.worker():
            await app.log.wait(events.RunEnded, outcome="suspended")
            assert await send(app, job, "n", 1, id="a"), "consumed, and still known"
            await app.log.wait(events.RunSucceeded)
        assert await result_of(app) == "[1,2,3]"
        taken = {signal.id: signal.consumed_by for signal in await signals_of(app, job)}
        assert taken == {"a": "n", "b": "n#2", "c": "third", "d": None}

    harness.run(scenario())


def test_several_waits_at_once_and_interleaved_signals(harness: WorkerHarness) -> None:
    """Whatever comes first goes on, its steps are recorded, and the others wait on, also across suspensions."""
    app = harness.app()
    seen: list[Any] = []

    @app.task
    async def order(ctx: Context) -> list[Any]:
        async def one(name: str) -> Any:
            value = await ctx.wait_for(name)
            await ctx.step(f"seen:{name}", seen.append, name)
            return value

        return list(await asyncio.gather(one("a"), one("b"), one("c")))

    async def scenario() -> None:
        job = await order.enqueue()
        async with app.worker() as worker:
            for number, name in enumerate("bac", start=1):
                await app.log.wait(events.RunEnded, number, outcome="suspended")
                await asyncio.sleep(100)
                await send(app, job, name, name.upper(), wake=worker)
            await app.log.wait(events.RunSucceeded)
        assert await result_of(app) == '["A","B","C"]'
        assert await app.outcomes() == ["suspended"] * 3 + ["succeeded"]

    harness.run(scenario())
    assert seen == ["b", "a", "c"]


def test_one_signal_is_received_by_one_of_two_waits(harness: WorkerHarness) -> None:
    """Two waits for one name at once: the first call gets the first signal."""
    app = harness.app()

    @app.task
    async def order(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(ctx.wait_for("go", name="first"), ctx.wait_for("go", name="second")))

    async def scenario() -> None:
        job = await order.enqueue()
        await send(app, job, "go", 1, id="a")
        async with app.worker() as worker:
            await app.log.wait(events.RunEnded, outcome="suspended")
            await send(app, job, "go", 2, id="b", wake=worker)
            await app.log.wait(events.RunSucceeded)
        assert await result_of(app) == "[1,2]"

    harness.run(scenario())


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize(
    ("verb", "after"), [("read_waits", False), ("read_waits", True), ("suspend_jobs", False), ("suspend_jobs", True)]
)
def test_a_signal_that_races_the_suspension_is_not_missed(
    harness: WorkerHarness, verb: str, *, after: bool, folded: bool
) -> None:
    """Whether the run's look, its suspension or a later fold sees it: the function goes on at once."""
    app = harness.app()

    @app.task
    async def order(ctx: Context) -> Any:
        other = asyncio.create_task(ctx.wait_for("never"))
        value = await ctx.wait_for("go")
        other.cancel()
        return value

    async def scenario() -> None:
        job = await order.enqueue()

        async def interfere() -> None:
            await send(app, job, "go", 5)
            if folded:  # by another worker
                async with sound(app) as store:
                    assert await store.fold_marks()

        at(app, verb, interfere, after=after)
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        assert await result_of(app) == "5"

    harness.run(scenario())
    assert harness.seconds() < 1


def test_a_signal_is_noticed_while_another_step_works(harness: WorkerHarness) -> None:
    """The function cannot be suspended then, and looks now and then."""
    app = harness.app()
    seen: list[Any] = []

    @app.task
    async def order(ctx: Context) -> None:
        async def wait() -> None:
            await ctx.wait_for("go")
            seen.append(harness.seconds())

        await asyncio.gather(wait(), ctx.step("work", asyncio.sleep, 1_000))

    async def scenario() -> None:
        job = await order.enqueue()
        async with app.worker() as worker:
            await asyncio.sleep(500)
            await send(app, job, "go", wake=worker)
            await app.log.wait(events.RunSucceeded)

    harness.run(scenario())
    assert 500 < seen[0] < 531


def test_a_signal_is_noticed_beside_many_short_steps(harness: WorkerHarness) -> None:
    """Steps that begin and end all the time do not put off the look for ever."""
    app = harness.app()
    seen: list[Any] = []

    @app.task
    async def order(ctx: Context) -> None:
        async def work() -> None:
            for number in range(200):
                await ctx.step(f"n:{number}", asyncio.sleep, 0.4)

        async def wait() -> None:
            await ctx.wait_for("go")
            seen.append(harness.seconds())

        await asyncio.gather(wait(), work())

    async def scenario() -> None:
        job = await order.enqueue()
        async with app.worker() as worker:
            await asyncio.sleep(10)
            await send(app, job, "go", wake=worker)
            await app.log.wait(events.RunSucceeded)

    harness.run(scenario())
    assert 10 < seen[0] < 41


def test_a_signal_does_not_wake_what_waits_for_something_else(harness: WorkerHarness) -> None:
    """A sleeper, a backoff and a wait for another name stay as they are."""
    app = harness.app()

    @app.task
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep("pause", "1d")

    @app.task
    async def waiter(ctx: Context) -> None:
        await ctx.wait_for("other")

    @app.task(backoff="1d")
    async def failing() -> None:
        raise ValueError

    async def scenario() -> None:
        jobs = [await task.enqueue() for task in (sleeper, waiter, failing)]
        async with app.worker() as worker:
            await asyncio.sleep(1)
            for job in jobs:
                assert await send(app, job, "go", wake=worker)
            await asyncio.sleep(1_000)
        assert sorted(await app.outcomes()) == ["failed", "suspended", "suspended"]

    harness.run(scenario())


def test_a_wait_times_out(harness: WorkerHarness) -> None:
    """`WaitTimeout` at its time. Caught, it is recorded: a later signal changes nothing at replays."""
    app = harness.app()
    caught: list[Any] = []

    @app.task
    async def order(ctx: Context) -> str:
        try:
            await ctx.wait_for(decision, timeout="2h")
        except WaitTimeout as error:
            caught.append((round(harness.seconds()), str(error)))
        await ctx.sleep("escalate", "1h")
        return "escalated"

    async def scenario() -> None:
        job = await order.enqueue()
        async with app.worker() as worker:
            await app.log.wait(events.RunEnded, 2, outcome="suspended")
            assert (await steps_of(app, job))["decision"].state is StepState.FAILED
            await send(app, job, decision, Decision(True, "late"), wake=worker)
            await app.log.wait(events.RunSucceeded)
        assert await result_of(app) == '"escalated"'
        assert [signal.consumed_by for signal in await signals_of(app, job)] == [None]

    harness.run(scenario())
    late = "The signal 'decision' did not come in time."
    assert caught == [(7200, late), (10800, late)]


def test_a_timeout_let_through_is_asked_for_again(harness: WorkerHarness) -> None:
    """Nothing is recorded: the next attempt receives a signal that came meanwhile. The wait does not start anew."""
    app = harness.app()
    late: list[Any] = []

    @app.task(backoff="1h")
    async def order(ctx: Context) -> Any:
        try:
            return await ctx.wait_for("go", timeout="2h")
        except WaitTimeout:
            late.append(round(harness.seconds()))
            raise

    async def scenario() -> None:
        job = await order.enqueue()
        async with app.worker() as worker:
            await app.log.wait(events.RunFailed, 2)
            await send(app, job, "go", 1, wake=worker)
            await app.log.wait(events.RunSucceeded)
        assert await app.outcomes() == ["suspended", "failed", "failed", "succeeded"]

    harness.run(scenario())
    assert late == [7200, 10800]


def test_a_signal_in_time_beats_the_timeout(harness: WorkerHarness) -> None:
    """Both are there when the function resumes: the signal is received."""
    app, other = harness.app(), harness.app()

    async def order(ctx: Context) -> Any:
        return await ctx.wait_for("go", timeout="1h")

    task = app.task(order)
    other.task(order)

    async def scenario() -> None:
        job = await task.enqueue()
        async with app.worker():
            await app.log.wait(events.RunEnded, outcome="suspended")
        await send(app, job, "go", 1)
        await asyncio.sleep(7200)
        async with other.worker():
            await other.log.wait(events.RunSucceeded)
        assert await result_of(app) == "1"

    harness.run(scenario())


def test_a_timeout_of_zero_takes_what_is_there(harness: WorkerHarness) -> None:
    """It asks without waiting."""
    app = harness.app()

    @app.task
    async def order(ctx: Context) -> list[Any]:
        taken = []
        while True:
            try:
                taken.append(await ctx.wait_for("n", timeout="0s"))
            except WaitTimeout:
                return taken

    async def scenario() -> None:
        job = await order.enqueue()
        for number in (1, 2):
            await send(app, job, "n", number, id=str(number))
        await app.drain()
        assert (await app.outcomes(), await result_of(app)) == (["succeeded"], "[1,2]")

    harness.run(scenario())


def test_a_signal_whose_wait_was_cancelled_is_received_by_the_next(harness: WorkerHarness) -> None:
    """A wait that is cancelled in the turn of the loop in which its signal comes has not received it."""
    app = harness.app()

    @app.task
    async def order(ctx: Context) -> Any:
        first = asyncio.create_task(ctx.wait_for("go", name="first"))

        async def cancel_next() -> None:
            asyncio.get_running_loop().call_soon(first.cancel)

        at(app, "read_waits", cancel_next, after=True)
        await asyncio.wait({first})
        return first.cancelled(), await ctx.wait_for("go", name="second")

    async def scenario() -> None:
        job = await order.enqueue()
        await send(app, job, "go", 1)
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        assert await result_of(app) == "[true,1]"

    harness.run(scenario())
    assert harness.seconds() < 1


def test_a_signal_of_a_wrong_type_is_a_clear_failure(harness: WorkerHarness) -> None:
    """Let through it fails the run and stays; caught it counts as received, at replays too."""
    app = harness.app()
    seen: list[Any] = []

    @app.task(max_attempts=2, backoff="1s")
    async def order(ctx: Context) -> str:
        try:
            answer = await ctx.wait_for(decision)
        except ArgumentsError as error:
            seen.append(str(error))
            if ctx.fence == 1:
                raise
            answer = await ctx.wait_for(decision, name="better")
        await ctx.sleep("pause", "1h")
        return answer.by

    async def scenario() -> None:
        job = await order.enqueue()
        await send(app, job, "decision", {"ok": "perhaps"}, id="bad")
        await send(app, job, decision, Decision(True, "ada"), id="good")
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        assert (await app.outcomes(), await result_of(app)) == (["failed", "suspended", "succeeded"], '"ada"')
        taken = {signal.id: signal.consumed_by for signal in await signals_of(app, job)}
        assert taken == {"bad": "decision", "good": "better"}

    harness.run(scenario())
    assert len(seen) == 3
    assert all("Signal 'decision'" in text and "perhaps" not in text for text in seen)


def test_signals_need_a_job(harness: WorkerHarness) -> None:
    """Nothing is stored for a job that has ended or never existed; a dead one receives it when it is retried."""
    app = harness.app()

    @app.task(max_attempts=1)
    async def order(ctx: Context, how: str) -> Any:
        if how == "fail" and ctx.fence == 1:
            raise ValueError
        return await ctx.wait_for("go") if how == "fail" else None

    async def scenario() -> None:
        done, dead = await order.enqueue("succeed"), await order.enqueue("fail")
        await app.drain()
        assert not await send(app, done, "go")
        assert not await send(app, uuid4(), "go")
        assert (await app.one_job()).state is State.DEAD
        assert await send(app, dead, "go", 7)
        async with sound(app) as store:
            assert await store.retry_job(dead.id)
        await app.drain()
        assert [run.result for run in await dead.runs()] == ["7", None]

    harness.run(scenario())


def test_a_signal_belongs_to_the_slot(harness: WorkerHarness) -> None:
    """One that a slot has not received is not the next slot's."""
    app = harness.app()

    @app.task(every="1h")
    async def report(ctx: Context) -> str:
        try:
            await ctx.wait_for("go", timeout="0s" if ctx.slot_no == 2 else "1m")
        except WaitTimeout:
            return "none"
        return "one"

    async def scenario() -> None:
        async with app.worker() as worker:
            await app.log.wait(events.RunEnded, outcome="suspended")
            (view,) = await app.jobs()
            for number in (1, 2):
                await send(app, view.id, "go", id=str(number), wake=worker)
            await app.log.wait(events.RunSucceeded, 2)
        assert [run.result for run in await app.ledger() if run.result] == ['"one"', '"none"']

    harness.run(scenario())


def test_signals_that_again_leaves_behind_are_reported(harness: WorkerHarness) -> None:
    """They belong to the slot that ends. One that was received is not reported, nor is a slot without waits."""
    app = harness.app()

    @app.task
    async def actor(ctx: Context, receive: int) -> None:
        for number in range(receive):
            await ctx.wait_for("note", name=f"note {number}")
        if ctx.slot_no == 1:
            raise Again(actor.call(0))

    async def scenario() -> None:
        for receive in (0, 1, 2):
            job = await actor.enqueue(receive)
            for number in range(2):
                await send(app, job, "note", number, id=str(number))
        async with app.worker():
            await app.log.wait(events.RunSucceeded, 6)

    harness.run(scenario())
    assert [event.signals for event in app.log.of(events.SignalsNotReceived)] == [["note"]]
