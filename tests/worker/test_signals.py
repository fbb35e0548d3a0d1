"""`job.signal()`: from anywhere to a job that is there, once per id, in the sender's own transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from reltask import App, ArgumentsError, Context, JobEnded, Signal, State, SyncContext, UsageError
from reltask.producer.signal import signal_of
from tests.worker.worker_harness import HarnessApp, WorkerHarness, working


@dataclass
class Decision:
    """What a person decided."""

    ok: bool


decision = Signal("decision", Decision)
NONE_YET: list[tuple[str, str]] = []


@pytest.fixture
def app(harness: WorkerHarness) -> HarnessApp:
    """An app with one task that waits for nothing."""
    app = harness.app()

    @app.task(name="fulfil", aliases=["ship"])
    async def fulfil() -> None: ...

    return app


async def stored(job: Any) -> list[tuple[str, str]]:
    return [(signal.name, signal.value) for signal in await job.signals()]


def test_a_signal_is_stored_with_its_job(app: HarnessApp, harness: WorkerHarness) -> None:
    """By id, by key, by an app that knows no task; typed or with a plain name."""

    async def scenario() -> None:
        fulfil = app.get_task("fulfil")
        job = await fulfil.using(key="order-42", delay="1h").enqueue()
        await job.signal(decision, Decision(ok=True))
        await fulfil.job(key="order-42").signal(decision, Decision(ok=False))
        await app.job(job.id).signal("note", ["seen", 7])
        expected = [("decision", '{"ok":true}'), ("decision", '{"ok":false}'), ("note", '["seen",7]')]
        assert await stored(job) == expected

    harness.run(scenario())


def test_the_same_id_is_the_same_signal(app: HarnessApp, harness: WorkerHarness) -> None:
    """A click that is sent twice counts once; without an id each call is a signal."""

    async def scenario() -> None:
        job = await app.get_task("fulfil").using(delay="1h").enqueue()
        for _ in range(2):
            await job.signal(decision, Decision(ok=True), id="click-1")
        assert [signal.id for signal in await job.signals()] == ["click-1"]
        for _ in range(2):
            await job.signal(decision, Decision(ok=True))
        assert len({signal.id for signal in await job.signals()}) == 3
        wrong: list[Any] = ["", "x" * 201, "two\nlines", 7]
        for one in wrong:
            with pytest.raises(UsageError, match="signal's id"):
                await job.signal(decision, Decision(ok=True), id=one)

    harness.run(scenario())


def test_a_job_under_a_former_name_of_its_task_is_found(app: HarnessApp, harness: WorkerHarness) -> None:
    """It was enqueued before the rename."""
    old = harness.app()

    @old.task
    async def ship() -> None: ...

    async def scenario() -> None:
        job = await ship.using(key="order-42", delay="1h").enqueue()
        await app.get_task("fulfil").job(key="order-42").signal(decision, Decision(ok=True))
        assert len(await job.signals()) == 1

    harness.run(scenario())


def test_a_job_that_has_ended_takes_no_signal(app: HarnessApp, harness: WorkerHarness) -> None:
    """Nothing is stored, and the caller hears of it."""

    async def scenario() -> None:
        fulfil = app.get_task("fulfil")
        job = await fulfil.using(key="order-42").enqueue()
        await app.drain()
        for ended in (job, fulfil.job(key="order-42"), app.job(uuid4())):
            with pytest.raises(JobEnded, match="signal 'decision' was not sent"):
                await ended.signal(decision, Decision(ok=True))
        assert await stored(job) == NONE_YET

    harness.run(scenario())


def test_a_wrong_value_is_refused_before_anything_is_sent(app: HarnessApp, harness: WorkerHarness) -> None:
    """Of another type, or larger than arguments may be."""
    app.configure(limits__arguments=50)

    async def scenario() -> None:
        job = await app.get_task("fulfil").using(delay="1h").enqueue()
        with pytest.raises(ArgumentsError, match="Signal 'decision'"):
            await job.signal("decision", object())
        with pytest.raises(ArgumentsError, match="Signal 'decision'"):
            await job.signal(signal_of(decision), "yes")
        with pytest.raises(ArgumentsError, match="exceed the limit of 50"):
            await job.signal("note", "x" * 100)
        assert app.faults.calls["send_signals"] == 0

    harness.run(scenario())


def test_a_signal_wakes_the_workers(app: HarnessApp, harness: WorkerHarness) -> None:
    """Those of this process, and by the database's signal those of others."""
    woken: list[bool] = []
    app._sender.wakes.add(lambda _: woken.append(True))

    async def scenario() -> None:
        job = await app.get_task("fulfil").using(delay="1h").enqueue()
        woken.clear()
        before = app.faults.calls["signal"]
        await job.signal(decision, Decision(ok=True))
        assert (len(woken), app.faults.calls["signal"] - before) == (1, 1)

    harness.run(scenario())


def test_a_function_that_waits_goes_on_with_the_signal(harness: WorkerHarness) -> None:
    """Sent while it is suspended, in another process; its result and its steps are there afterwards."""
    app, sender = harness.app(), harness.app()

    @app.task
    async def approve(ctx: Context) -> bool:
        return (await ctx.wait_for(decision)).ok

    async def scenario() -> None:
        job = await approve.using(key="order-42").enqueue()
        async with app.worker():
            result = asyncio.create_task(job.result(timeout="1h"))
            await asyncio.sleep(60)
            view = await job.view()
            assert view is not None
            assert view.state is State.SUSPENDED
            await sender.job(job.id).signal("decision", {"ok": True})
            assert await result is True
        assert [(step.name, step.kind, step.state) for step in await job.steps()] == [("decision", "wait", "done")]
        assert [signal.consumed_by for signal in await job.signals()] == ["decision"]

    harness.run(scenario())


# In a transaction


@pytest.fixture
async def real(live: WorkerHarness) -> AsyncIterator[App]:
    """An ordinary app, whose bodies send signals in their own transactions."""
    app = App(f"sqlite:///{live.path}")

    @app.task
    async def fulfil() -> None: ...

    @app.task(max_attempts=1)
    async def decide(ctx: Context, key: str, fails: bool) -> None:
        async with ctx.transaction():
            await fulfil.job(key=key).signal(decision, Decision(ok=True))
            if fails:
                raise ValueError("rolled back")

    @app.task(max_attempts=1)
    def decide_in_thread(ctx: SyncContext, key: str, fails: bool) -> None:
        with ctx.transaction():
            fulfil.job(key=key).signal_sync(decision, Decision(ok=True))
            if fails:
                raise ValueError("rolled back")

    async with working(app):
        yield app


@pytest.mark.parametrize("name", ["decide", "decide_in_thread"])
async def test_a_signal_of_a_task_is_sent_by_its_commit(name: str, real: App) -> None:
    """Inside `ctx.transaction()` it joins the block: rolled back, it was never sent."""
    fulfil, decide = real.get_task("fulfil"), real.get_task(name)
    kept = await fulfil.using(key="kept", delay="1h").enqueue()
    undone = await fulfil.using(key="undone", delay="1h").enqueue()
    await (await decide.enqueue("kept", fails=False)).result()
    with pytest.raises(Exception, match="rolled back"):
        await (await decide.enqueue("undone", fails=True)).result()
    assert (await stored(kept), await stored(undone)) == ([("decision", '{"ok":true}')], NONE_YET)


def test_a_signal_joins_the_users_transaction(live: WorkerHarness) -> None:
    """With `connection=` it is sent by the user's commit; a rollback takes it back."""
    app = App(f"sqlite:///{live.path}")

    @app.task
    async def fulfil() -> None: ...

    job = fulfil.using(delay="1h").enqueue_sync()
    with closing(sqlite3.connect(live.path)) as connection:
        job.signal_sync(decision, Decision(ok=True), connection=connection)
        connection.rollback()
        assert job.signals_sync() == []
        job.signal_sync(decision, Decision(ok=False), connection=connection)
        connection.commit()
    assert [signal.value for signal in job.signals_sync()] == ['{"ok":false}']
    with (
        closing(sqlite3.connect(live.path)) as connection,
        pytest.raises(JobEnded),
    ):
        app.job(uuid4()).signal_sync(decision, Decision(ok=True), connection=connection)
    app.close()
