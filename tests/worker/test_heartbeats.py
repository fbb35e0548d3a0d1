"""Heartbeats of a whole worker: on virtual time where bodies are coroutines, on the real thread otherwise."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from datetime import timedelta

import pytest

from reltask import Context, LockLost, SyncContext, events
from reltask.errors import TransientError
from reltask.model.job import State
from tests.worker.worker_harness import LIVE_PATIENCE, HarnessApp, WorkerHarness

MINUTE = 60.0
BRISK: dict[str, object] = {"worker.lock_timeout": "10s", "worker.heartbeat": "100ms", "worker.beat_timeout": "4s"}
"""Heartbeats short enough for a test in real time. A process paused for seconds keeps its locks."""


def away() -> TransientError:
    return TransientError("the database is away")


def test_heartbeat_extends_the_lock(harness: WorkerHarness) -> None:
    """A body that runs for ten lock timeouts keeps its claim: each beat moves `heartbeat_at` and the lock's end."""
    app = harness.app()

    @app.task
    async def long() -> None:
        for _ in range(10):
            await asyncio.sleep(2 * MINUTE)
            job = await app.one_job()
            assert job.heartbeat_at is not None
            assert harness.now() - job.heartbeat_at <= timedelta(seconds=30)
            assert job.lock_expires_at == job.heartbeat_at + timedelta(minutes=2)

    async def scenario() -> list[str]:
        async with app.worker():
            await long.enqueue()
            await app.log.wait(events.RunSucceeded)
        return await app.outcomes()

    assert harness.run(scenario()) == ["succeeded"]


def test_heartbeat_stops_when_task_completes(harness: WorkerHarness) -> None:
    """Once a run is settled, no heartbeat is sent for it."""
    app = harness.app()

    @app.task
    async def long() -> None:
        await asyncio.sleep(100.0)

    async def scenario() -> None:
        async with app.worker():
            await long.enqueue()
            await app.log.wait(events.RunSucceeded)
            assert app.faults.calls["heartbeat_jobs"] == 3
            await asyncio.sleep(600.0)

    harness.run(scenario())
    assert app.faults.calls["heartbeat_jobs"] == 3


def test_three_failed_heartbeats_stop_the_body(harness: WorkerHarness) -> None:
    """After three whole intervals without a good beat, the body is cancelled, and slot and attempt released."""
    app = harness.app()
    stopped = []

    @app.task
    async def long() -> None:
        try:
            await asyncio.sleep(1000.0)
        finally:
            stopped.append(harness.seconds())

    async def scenario() -> None:
        async with app.worker():
            await long.enqueue()
            await app.log.wait(events.RunStarted)
            app.faults.error, app.faults.verbs = away, {"heartbeat_jobs", "read_holds"}
            abandoned = await app.log.wait(events.RunAbandoned)
            assert abandoned.reason == "3 heartbeats in a row failed"
            app.faults.verbs = {"claim_jobs"}  # no worker claims it again while the test looks
            await app.log.wait(events.RunEnded, outcome="abandoned")
            job = await app.one_job()
            assert (job.state, job.attempt, job.slot_no) == (State.READY, 0, 1)

    harness.run(scenario())
    assert stopped == [95.0]
    assert [e.failures for e in app.log.of(events.HeartbeatFailed)] == [1, 2, 3]


def test_two_failed_heartbeats_are_survived(harness: WorkerHarness) -> None:
    """A success resets the counter: repeated outages of two intervals do not stop a body."""
    app = harness.app()

    @app.task
    async def long() -> None:
        await asyncio.sleep(1000.0)

    async def scenario() -> list[str]:
        async with app.worker():
            await long.enqueue()
            await app.log.wait(events.RunStarted)
            for _ in range(5):
                app.faults.error, app.faults.verbs = away, {"heartbeat_jobs", "read_holds"}
                await app.log.wait(events.HeartbeatFailed, len(app.log.of(events.HeartbeatFailed)) + 2)
                app.faults.error = None
                await asyncio.sleep(45.0)
            await app.log.wait(events.RunSucceeded)
        return await app.outcomes()

    assert harness.run(scenario()) == ["succeeded"]
    assert app.log.of(events.RunAbandoned) == []


def test_hung_heartbeat_does_not_delay_the_deadline(harness: WorkerHarness) -> None:
    """A call that never answers is given up in time: the body is stopped at its deadline."""
    app = harness.app(settings={"worker.beat_timeout": "7s"})

    @app.task
    async def long() -> None:
        await asyncio.sleep(1000.0)

    async def scenario() -> float:
        async with app.worker():
            await long.enqueue()
            await app.log.wait(events.RunStarted)
            app.faults.hanging.add("heartbeat_jobs")
            await app.log.wait(events.RunAbandoned)
            seconds = harness.seconds()
            app.faults.hanging.clear()
        return seconds

    assert harness.run(scenario()) == 3 * 30.0 + 7.0


def test_slow_answer_renews_trust_from_before_it_was_asked_for(harness: WorkerHarness) -> None:
    """Trust counts from the sending: after an answer that took four seconds the body stops four seconds earlier."""
    app = harness.app()

    @app.task
    async def long() -> None:
        await asyncio.sleep(1000.0)

    async def scenario() -> float:
        async with app.worker():
            await long.enqueue()
            await app.log.wait(events.RunStarted)
            app.faults.slow["heartbeat_jobs"] = 4.0
            await asyncio.sleep(40.0)
            app.faults.error, app.faults.verbs = away, {"heartbeat_jobs", "read_holds"}
            await app.log.wait(events.RunAbandoned)
            app.faults.error = None
            return harness.seconds()

    assert harness.run(scenario()) == 30.0 + 95.0


def test_heartbeat_abandonment_prevents_multi_master(harness: WorkerHarness) -> None:
    """A worker cut off from the database stops its body before another worker starts the same slot."""
    cut, healthy = harness.app(), harness.app()
    running: list[str] = []
    started: list[str] = []

    def declare(app: HarnessApp, name: str) -> None:
        @app.task(name="job")
        async def job() -> None:
            started.append(name)
            running.append(name)
            assert len(running) == 1, "two bodies of one slot at the same time"
            try:
                await asyncio.sleep(300.0)
            finally:
                running.remove(name)

    declare(cut, "cut")
    declare(healthy, "healthy")

    async def scenario() -> None:
        async with cut.worker():
            await cut.get_task("job").enqueue()
            await cut.log.wait(events.RunStarted)
            cut.faults.error = away
            async with healthy.worker():
                await healthy.log.wait(events.RunSucceeded)
            cut.faults.error = None
            await cut.log.wait(events.LateWriteRefused)

    harness.run(scenario())
    assert started == ["cut", "healthy"]


def test_claim_taken_away_stops_the_body(harness: WorkerHarness) -> None:
    """If a committed read shows another owner, the body is stopped and its write refused."""
    app = harness.app()

    @app.task
    async def long(ctx: Context) -> None:
        await asyncio.sleep(1000.0)
        ctx.check()

    async def scenario() -> None:
        async with app.worker():
            await long.enqueue()
            await app.log.wait(events.RunStarted)
            steal(app)
            abandoned = await app.log.wait(events.RunAbandoned)
            assert abandoned.reason == "another worker has the claim"
            assert harness.seconds() == 30.0
            await app.log.wait(events.LateWriteRefused)

    harness.run(scenario())


def steal(app: HarnessApp) -> None:
    """The row as a reclaim and another worker's claim would leave it."""
    with closing(sqlite3.connect(app.path)) as connection, connection:
        connection.execute("update reltask_jobs set locked_by = 'thief', fence = fence + 1")


# On the real thread, in real time


@pytest.mark.slow
async def test_blocked_event_loop_keeps_its_lock(live: WorkerHarness) -> None:
    """A task that blocks the event loop keeps its lock: a separate thread sends the heartbeats."""
    app = live.app(settings=BRISK)

    @app.task(max_attempts=1)
    async def block() -> None:
        before, until = read_beat(app), time.monotonic() + LIVE_PATIENCE
        while read_beat(app) == before:
            assert time.monotonic() < until
            time.sleep(0.01)  # noqa: ASYNC251 - blocking the loop is the point

    async with app.worker() as worker:
        await block.enqueue()
        await worker.drained()
    assert await app.outcomes() == ["succeeded"]
    app.close()


def read_beat(app: HarnessApp) -> object:
    """When the only claim was last renewed, read without a loop."""
    with closing(sqlite3.connect(app.path)) as connection:
        return connection.execute("select heartbeat_at from reltask_jobs").fetchone()


@pytest.mark.slow
async def test_thread_body_gets_lock_lost(live: WorkerHarness) -> None:
    """A thread cannot be cancelled: it gets a flag, and LockLost at its next call on ctx."""
    app = live.app(settings=BRISK)
    heard = []

    @app.task
    def wait_for_it(ctx: SyncContext) -> None:
        while not ctx.cancelled:
            time.sleep(0.005)
        try:
            ctx.check()
        except LockLost as lost:
            heard.append(str(lost))
            raise

    async with app.worker():
        await wait_for_it.enqueue()
        await app.log.wait(events.RunStarted)
        steal(app)
        await app.log.wait(events.LateWriteRefused)
    assert heard == ["This run's claim is no longer to be trusted: another worker has the claim."]
    app.close()
