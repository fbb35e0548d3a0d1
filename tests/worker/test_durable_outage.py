"""Durable functions and a database that fails, workers that stop, claims that are lost: nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from reltask import Context, SyncContext, events
from reltask.errors import AmbiguousError, ConflictError, LockLost, StepFailed
from reltask.model.job import State
from tests.worker.durable_helpers import away, result_of, send, steps_of
from tests.worker.worker_harness import HarnessApp, WorkerHarness


def waiting_order(app: HarnessApp, calls: list[int]) -> Any:
    @app.task(name="order", backoff="1s")
    async def order(ctx: Context) -> object:
        await ctx.step("before", calls.append, ctx.fence)
        return await ctx.wait_for("go")

    return order


@pytest.mark.parametrize("verb", ["record_steps", "read_waits", "suspend_jobs", "read_steps", None])
def test_an_outage_is_waited_for(harness: WorkerHarness, verb: str | None) -> None:
    """Whichever call meets it: the function goes on when the database is back, and its step has run once."""
    app = harness.app()
    calls: list[Any] = []
    order = waiting_order(app, calls)

    async def scenario() -> None:
        job = await order.enqueue()
        async with app.worker() as worker:
            if verb in ("read_steps", None):
                await app.log.wait(events.RunEnded, outcome="suspended")
            app.faults.error, app.faults.verbs = away, {verb} if verb else None
            await send(app, job, "go", 5, wake=worker)
            await asyncio.sleep(30)
            app.faults.error = None
            worker.wake()
            await app.log.wait(events.RunSucceeded)
        assert await result_of(app) == "5"
        assert "failed" not in await app.outcomes()

    harness.run(scenario())
    assert calls == [1]
    assert harness.seconds() < 60


@pytest.mark.parametrize("verb", ["record_steps", "read_waits", "suspend_jobs", "read_steps", "fold_marks"])
def test_a_lost_answer_changes_nothing(harness: WorkerHarness, verb: str) -> None:
    """The same recording may be sent twice; the same suspension is found in the ledger."""
    app = harness.app()
    calls: list[Any] = []
    order = waiting_order(app, calls)

    async def scenario() -> None:
        job = await order.enqueue()
        app.faults.losing[verb] = 2
        async with app.worker() as worker:
            await app.log.wait(events.RunEnded, outcome="suspended")
            await send(app, job, "go", 5, wake=worker)
            await app.log.wait(events.RunSucceeded)
        assert (await app.outcomes(), await result_of(app)) == (["suspended", "succeeded"], "5")

    harness.run(scenario())
    assert calls == [1]
    assert app.faults.losing[verb] < 2, "an answer was lost"
    assert app.log.of(events.LateWriteRefused) == []


def test_a_record_that_is_refused_after_a_lost_answer_does_not_count(harness: WorkerHarness) -> None:
    """Whether the first arrived is unknown, and the second is refused for good: the job is dead and goes no further."""
    app = harness.app()
    ran: list[str] = []

    @app.task
    async def order(ctx: Context) -> None:
        await ctx.step("charge", ran.append, "charge")
        ran.append("went on")

    async def scenario() -> None:
        answers = iter([AmbiguousError("the connection broke"), ConflictError("refused")])
        app.faults.error, app.faults.verbs = lambda: next(answers), {"record_steps"}
        await order.enqueue()
        async with app.worker():
            await app.log.wait(events.LateWriteRefused)
        assert (await app.one_job()).state is State.DEAD
        assert ran == ["charge"]

    harness.run(scenario())


def test_an_outage_longer_than_the_claim_repeats_no_step(harness: WorkerHarness) -> None:
    """The claim can no longer be trusted and the body is stopped; the record that was on its way comes first."""
    app = harness.app()
    calls: list[Any] = []
    order = waiting_order(app, calls)

    async def scenario() -> None:
        job = await order.enqueue()
        app.faults.error, app.faults.verbs = away, {"record_steps", "heartbeat_jobs", "release_jobs"}
        async with app.worker():
            await app.log.wait(events.RunAbandoned)
            app.faults.error = None
            await app.log.wait(events.RunEnded, outcome="suspended")
            await send(app, job, "go")
        assert (await app.outcomes())[0] == "abandoned"
        assert sorted(await steps_of(app, job)) == ["before", "go"]

    harness.run(scenario())
    assert calls == [1]


def test_a_step_is_not_repeated_because_its_record_outlasts_the_timeout(harness: WorkerHarness) -> None:
    """A body that has ended is renewed until its records are written, past its timeout and its grace."""
    app, rival = harness.app(), harness.app()
    calls: list[Any] = []

    async def order(ctx: Context) -> None:
        await ctx.step("before", calls.append, ctx.fence)

    tasks = [one.task(name="order", timeout="5s", backoff="1s")(order) for one in (app, rival)]
    for one in (app, rival):
        one.faults.error, one.faults.verbs = away, {"record_steps"}

    async def scenario() -> None:
        await tasks[0].enqueue()
        async with app.worker(), rival.worker():
            await asyncio.sleep(600)
            app.faults.error = rival.faults.error = None
            await asyncio.sleep(60)
        assert await app.outcomes() == ["failed", "succeeded"]

    harness.run(scenario())
    assert calls == [1]


def test_a_worker_that_stops_while_a_call_is_parked_releases_the_job(harness: WorkerHarness) -> None:
    """Beside a working step the function cannot be suspended: it is released, and goes on elsewhere."""
    app, other = harness.app(), harness.app()
    calls: list[Any] = []

    async def order(ctx: Context) -> object:
        await ctx.step("before", calls.append, ctx.fence)
        return (await asyncio.gather(ctx.wait_for("go"), ctx.step("work", asyncio.sleep, 60)))[0]

    task = app.task(order)
    other.task(order)

    async def scenario() -> None:
        job = await task.enqueue()
        async with app.worker():
            await asyncio.sleep(30)
        view = await job.view()
        assert view is not None
        assert (view.state, view.locked_by) == (State.READY, None)
        await send(app, job, "go", 5)
        async with other.worker():
            await other.log.wait(events.RunSucceeded)
        assert (await app.outcomes(), await result_of(app)) == (["released", "succeeded"], "5")

    harness.run(scenario())
    assert calls == [1]
    assert app.log.of(events.BodyStuck) == []


def test_a_worker_that_stops_records_steps_that_have_ended(harness: WorkerHarness) -> None:
    """The record is on its way when the body is stopped: the job is released after it is written."""
    app, other = harness.app(), harness.app()
    calls: list[Any] = []
    waiting_order(other, calls)
    order = waiting_order(app, calls)

    async def scenario() -> None:
        job = await order.enqueue()
        app.faults.slow["record_steps"] = 3.0
        async with app.worker():
            await app.log.wait(events.RunStarted)
            await asyncio.sleep(1)
            assert calls == [1]
        assert await app.outcomes() == ["released"]
        assert sorted(await steps_of(app, job)) == ["before"]
        await send(app, job, "go")
        async with other.worker():
            await other.log.wait(events.RunSucceeded)

    harness.run(scenario())
    assert calls == [1]


def test_a_worker_that_dies_loses_only_what_was_not_recorded(harness: WorkerHarness) -> None:
    """Another worker takes over when the lock ends; recorded steps do not run again."""
    app, other = harness.app(), harness.app()
    calls: list[Any] = []

    async def order(ctx: Context) -> None:
        await ctx.step("before", calls.append, ctx.fence)
        await ctx.step("work", asyncio.sleep, 10 if ctx.fence == 1 else 0)

    task = app.task(order)
    other.task(order)

    async def scenario() -> None:
        await task.enqueue()
        async with app.frozen_worker():
            await asyncio.sleep(5)
        async with other.worker():
            await other.log.wait(events.RunSucceeded)
        assert await other.outcomes() == ["lost", "succeeded"]

    harness.run(scenario())
    assert calls == [1]


@pytest.mark.parametrize("state", ["parked", "recording"])
def test_a_lost_claim_stops_the_body(harness: WorkerHarness, state: str) -> None:
    """The look finds the job gone, or the record is refused: nothing more is done under the old fence."""
    app = harness.app()
    seen: list[Any] = []

    @app.task
    async def order(ctx: Context) -> None:
        try:
            if state == "parked":
                await asyncio.gather(ctx.wait_for("go"), ctx.step("work", asyncio.sleep, 600))
            try:
                await ctx.step("effect", steal)
            except LockLost:
                await asyncio.sleep(600)
            seen.append("went on")
        finally:
            seen.append("ended")

    def steal() -> None:
        with closing(sqlite3.connect(harness.path)) as connection:
            connection.execute("update reltask_jobs set fence = fence + 1, slot_no = slot_no + 1, locked_by = 'thief'")
            connection.commit()

    async def scenario() -> None:
        job = await order.enqueue()
        async with app.worker():
            if state == "parked":
                await asyncio.sleep(3)
                steal()
            await app.log.wait(events.LateWriteRefused)
        assert "effect" not in await steps_of(app, job, 1)

    harness.run(scenario())
    assert seen == ["ended"]
    assert harness.seconds() < (10 if state == "parked" else 1), "before a heartbeat would have noticed it"


def test_a_failed_step_does_not_hide_a_lost_claim(harness: WorkerHarness) -> None:
    """`LockLost` is about the run: it is no failure of a step that a saga could compensate."""
    app = harness.app()
    seen: list[Any] = []

    def refuse() -> AmbiguousError:
        return AmbiguousError("lost")

    @app.task(max_attempts=1)
    async def order(ctx: Context) -> None:
        async def write(_: Any) -> None: ...

        try:
            await ctx.transact("write", write)
        except StepFailed:
            seen.append("compensated")
            raise

    async def scenario() -> None:
        await order.enqueue()
        app.faults.error, app.faults.verbs = refuse, {"commit"}
        async with app.worker():
            await app.log.wait(events.RunEnded, outcome="abandoned")
            app.faults.error = None
            await app.log.wait(events.RunSucceeded)

    harness.run(scenario())
    assert seen == []


@pytest.mark.parametrize("kind", ["async", "def"])
def test_transact_waits_for_a_database_that_is_away(harness: WorkerHarness, live: WorkerHarness, kind: str) -> None:
    """Before its function is called nothing has been tried: an outage uses up no attempt, and makes no dead letter."""
    setup = harness if kind == "async" else live
    app = setup.app()
    calls: list[int] = []
    refused: list[int] = []

    def refuse() -> Exception:
        refused.append(1)
        if len(refused) == 5:
            app.faults.error = None
        return away()

    async def write(_: Any) -> None:
        calls.append(1)

    def write_in_thread(_: Any) -> None:
        calls.append(1)

    async def order(ctx: Context) -> None:
        await ctx.transact("write", write)

    def order_in_thread(ctx: SyncContext) -> None:
        ctx.transact("write", write_in_thread)

    body: Any = order if kind == "async" else order_in_thread
    task = app.task(max_attempts=1)(body)

    async def scenario() -> None:
        await task.enqueue()
        app.faults.error, app.faults.verbs = refuse, {"begin"}
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        assert await app.outcomes() == ["succeeded"]

    asyncio.run(scenario()) if setup is live else harness.run(scenario())
    assert (len(calls), len(refused)) == (1, 5)
