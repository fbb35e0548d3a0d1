"""Heartbeats of a whole worker: on virtual time where bodies are coroutines, on its own thread in real time."""

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
from tests.engine.stage import LIVE_PATIENCE, Stage, StageApp

MINUTE = 60.0
BRISK: dict[str, object] = {"worker.lock_timeout": "10s", "worker.heartbeat": "100ms", "worker.beat_timeout": "4s"}
"""Beats within a test's patience, in real time; a process that is paused for seconds keeps its locks."""


def away() -> TransientError:
    return TransientError("the database is away")


def test_heartbeat_extends_the_lock(stage: Stage) -> None:
    """A body that runs for ten lock timeouts keeps its claim: each beat moves `heartbeat_at` and the lock's end."""
    app = stage.app()

    @app.task
    async def long() -> None:
        for _ in range(10):
            await asyncio.sleep(2 * MINUTE)
            job = await app.one_job()
            assert job.heartbeat_at is not None
            assert stage.now() - job.heartbeat_at <= timedelta(seconds=30)
            assert job.lock_expires_at == job.heartbeat_at + timedelta(minutes=2)

    async def scenario() -> list[str]:
        async with app.worker():
            await long.enqueue()
            await app.log.wait(events.RunSucceeded)
        return await app.outcomes()

    assert stage.run(scenario()) == ["succeeded"]


def test_heartbeat_stops_when_task_completes(stage: Stage) -> None:
    """Once a run is settled nothing is beaten any more."""
    app = stage.app()

    @app.task
    async def long() -> None:
        await asyncio.sleep(100.0)

    async def scenario() -> None:
        async with app.worker():
            await long.enqueue()
            await app.log.wait(events.RunSucceeded)
            assert app.faults.calls["heartbeat_jobs"] == 3
            await asyncio.sleep(600.0)

    stage.run(scenario())
    assert app.faults.calls["heartbeat_jobs"] == 3


def test_three_failed_heartbeats_stop_the_body(stage: Stage) -> None:
    """Three whole intervals without a good beat: the body is cancelled, the slot released with its attempt."""
    app = stage.app()
    stopped = []

    @app.task
    async def long() -> None:
        try:
            await asyncio.sleep(1000.0)
        finally:
            stopped.append(stage.seconds())

    async def scenario() -> None:
        async with app.worker():
            await long.enqueue()
            await app.log.wait(events.RunStarted)
            app.faults.error, app.faults.verbs = away, {"heartbeat_jobs", "read_holds"}
            abandoned = await app.log.wait(events.RunAbandoned)
            assert abandoned.reason == "3 heartbeats in a row failed"
            app.faults.verbs = {"claim_jobs"}  # nobody takes it up again while we look
            await app.log.wait(events.RunEnded, outcome="abandoned")
            job = await app.one_job()
            assert (job.state, job.attempt, job.slot_no) == (State.READY, 0, 1)

    stage.run(scenario())
    assert stopped == [95.0]
    assert [e.failures for e in app.log.of(events.HeartbeatFailed)] == [1, 2, 3]


def test_two_failed_heartbeats_are_survived(stage: Stage) -> None:
    """A success resets the counter: an outage of two intervals costs a body nothing, again and again."""
    app = stage.app()

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

    assert stage.run(scenario()) == ["succeeded"]
    assert app.log.of(events.RunAbandoned) == []


def test_hung_heartbeat_does_not_delay_the_deadline(stage: Stage) -> None:
    """A call that never answers is given up in time: the body is stopped at the very moment that was planned."""
    app = stage.app(settings={"worker.beat_timeout": "7s"})

    @app.task
    async def long() -> None:
        await asyncio.sleep(1000.0)

    async def scenario() -> float:
        async with app.worker():
            await long.enqueue()
            await app.log.wait(events.RunStarted)
            app.faults.hanging.add("heartbeat_jobs")
            await app.log.wait(events.RunAbandoned)
            seconds = stage.seconds()
            app.faults.hanging.clear()
        return seconds

    assert stage.run(scenario()) == 3 * 30.0 + 7.0


def test_slow_answer_renews_trust_from_before_it_was_asked_for(stage: Stage) -> None:
    """An answer that took four seconds says what was true four seconds ago: the body is stopped that much earlier."""
    app = stage.app()

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
            return stage.seconds()

    assert stage.run(scenario()) == 30.0 + 95.0


def test_heartbeat_abandonment_prevents_multi_master(stage: Stage) -> None:
    """A worker cut off from the database stops its body before another worker starts the same slot."""
    cut, healthy = stage.app(), stage.app()
    running: list[str] = []
    started: list[str] = []

    def declare(app: StageApp, name: str) -> None:
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

    stage.run(scenario())
    assert started == ["cut", "healthy"]


def test_claim_taken_away_stops_the_body(stage: Stage) -> None:
    """When a committed read shows that the claim is somebody else's, the body is stopped, and its write refused."""
    app = stage.app()

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
            assert stage.seconds() == 30.0
            await app.log.wait(events.LateWriteRefused)

    stage.run(scenario())


def steal(app: StageApp) -> None:
    """What a reclaim and a claim by somebody else would leave in the row."""
    with closing(sqlite3.connect(app.path)) as connection, connection:
        connection.execute("update reltask_jobs set locked_by = 'thief', fence = fence + 1")


# On its own thread, in real time


@pytest.mark.slow
async def test_blocked_event_loop_keeps_its_lock(live: Stage) -> None:
    """A task that blocks the event loop keeps its lock: it is renewed meanwhile, by a thread that only beats."""
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


def read_beat(app: StageApp) -> object:
    """When the only claim was renewed, without the help of a loop."""
    with closing(sqlite3.connect(app.path)) as connection:
        return connection.execute("select heartbeat_at from reltask_jobs").fetchone()


@pytest.mark.slow
async def test_thread_body_hears_of_its_lost_lock(live: Stage) -> None:
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
