"""Stopping a worker: bodies finish, or are stopped and released; no claim is released while its body runs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable
from datetime import timedelta

import pytest

from reltask import Context, events
from reltask.errors import TransientError
from reltask.model.job import State
from reltask.worker.worker import GOODBYE
from tests.worker.worker_harness import HarnessApp, WorkerHarness


async def nothing() -> None:
    """A task."""


def test_graceful_shutdown_mid_task(harness: WorkerHarness) -> None:
    """A body that ends within the grace is completed, with heartbeats until then; no new job is claimed."""
    app = harness.app(settings={"worker.shutdown_grace": "5m"})

    @app.task
    async def long() -> str:
        await asyncio.sleep(200)
        return "done"

    async def scenario() -> None:
        async with app.worker():
            await long.enqueue()
            await app.log.wait(events.RunStarted)
            await long.enqueue()
            await app.log.wait(events.RunStarted, 2)
            await asyncio.sleep(50)
            app.faults.calls.clear()
        assert [(run.outcome, run.result) for run in await app.runs()] == [("succeeded", '"done"')] * 2
        assert harness.seconds() == 200.0
        assert app.faults.calls["heartbeat_jobs"] == 5, "at 60, 90, 120, 150, 180"
        assert app.faults.calls["claim_jobs"] == 0
        (worker,) = await app.workers()
        assert worker.state == "stopped"

    harness.run(scenario())
    assert app.log.of(events.WorkerStopped)[0].unsettled == 0


def test_two_stops_end_alike_while_the_maintenance_does_not_answer(harness: WorkerHarness) -> None:
    """The first one's patience ends the maintenance. That cancels no other stop, and a later one finds it ended."""
    app = harness.app(settings={"maintenance.coordination": "lease"})
    app.task(name="idle")(nothing)

    async def scenario() -> None:
        async with app.worker() as worker:
            await asyncio.sleep(30)
            app.faults.hanging = {"mark_dead_workers", "roll_up_runs", "prune_runs"}
            await asyncio.sleep(120)
            await asyncio.gather(worker.stop(), worker.stop())
            await worker.stop()

    harness.run(scenario())
    assert app.log.of(events.WorkerStopped)


def test_goodbye_is_not_waited_for(harness: WorkerHarness) -> None:
    """A database that swallows the last statement, as a black hole does, keeps no process: its row expires anyway."""
    app = harness.app()
    app.task(name="idle")(nothing)

    async def scenario() -> float:
        async with app.worker():
            app.faults.hanging = {"stop_worker"}
            began = harness.seconds()
        return harness.seconds() - began

    assert harness.run(scenario()) == GOODBYE
    assert app.log.of(events.WorkerStopped)


def test_nothing_is_claimed_while_the_lease_is_resigned(harness: WorkerHarness) -> None:
    """A worker claims no more from the moment it stops, however long the rest of its shutdown takes."""
    app = harness.app(settings={"maintenance.coordination": "lease", "worker.poll": "250ms"})

    @app.task
    async def job() -> None: ...

    async def enqueue_late() -> None:
        await app.log.wait(events.WorkerStopping)
        await job.enqueue()

    async def scenario() -> None:
        late = asyncio.create_task(enqueue_late())
        async with app.worker():
            await app.log.wait(events.LeaseAcquired)
            app.faults.slow["resign_lease"] = 1.0
        await late
        assert (await app.one_job()).fence == 0

    harness.run(scenario())


def test_stop_between_a_claim_and_its_bodies(harness: WorkerHarness) -> None:
    """Claimed jobs that have not begun are released too."""
    app = harness.app(settings={"worker.concurrency": 400, "worker.shutdown_grace": "0s"})

    @app.task
    async def long() -> None:
        await asyncio.sleep(600)

    async def scenario() -> None:
        await app.enqueue_many(long.call() for _ in range(400))
        claimed = asyncio.Event()
        app.subscribe(lambda e: claimed.set() if isinstance(e, events.JobsClaimed) else None)
        async with app.worker():
            await claimed.wait()
        assert {job.locked_by for job in await app.jobs(limit=400)} == {None}
        assert set(await app.outcomes()) == {"released"}

    harness.run(scenario())
    assert app.log.of(events.WorkerStopped)[0].unsettled == 0


def test_body_that_outlasts_the_grace_is_stopped_and_released(harness: WorkerHarness) -> None:
    """After the grace a body is cancelled; slot and attempt are released, and another worker claims it."""
    app, heir = harness.app(settings={"worker.shutdown_grace": "30s"}), harness.app()
    attempts: list[tuple[int, int]] = []
    for one in (app, heir):

        @one.task(name="long", max_attempts=1)
        async def long(ctx: Context) -> None:
            attempts.append((ctx.attempt, ctx.fence))
            await asyncio.sleep(100 if ctx.fence == 1 else 1)

    async def scenario() -> None:
        async with app.worker():
            await app.get_task("long").enqueue()
            await app.log.wait(events.RunStarted)
        assert harness.seconds() == 30.0
        job = await heir.one_job()
        assert (job.state, job.attempt, job.slot_no) == (State.READY, 0, 1)
        await heir.drain()
        assert await heir.outcomes() == ["released", "succeeded"]

    harness.run(scenario())
    assert attempts == [(1, 1), (1, 2)]


def test_hurry_ends_the_grace(harness: WorkerHarness) -> None:
    """A second signal: bodies are stopped now, and still released."""
    app = harness.app(settings={"worker.shutdown_grace": "1h"})

    @app.task
    async def long() -> None:
        await asyncio.sleep(10_000)

    async def scenario() -> list[str]:
        async with app.worker() as worker:
            await long.enqueue()
            await app.log.wait(events.RunStarted)
            asyncio.get_running_loop().call_later(7, worker.hurry)
        return await app.outcomes()

    assert harness.run(scenario()) == ["released"]
    assert harness.seconds() == 7.0


def test_body_may_clean_up_while_it_is_stopped(harness: WorkerHarness) -> None:
    """A claim is released only after its body has ended, cleaning up included; until then it is renewed."""
    app = harness.app(settings={"worker.stop_grace": "10s"})
    cleaned = []

    @app.task
    async def tidy() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(5)
            job = await app.one_job()
            cleaned.append((harness.seconds(), job.locked_by is not None))

    async def scenario() -> list[str]:
        async with app.worker():
            await tidy.enqueue()
            await app.log.wait(events.RunStarted)
        return await app.outcomes()

    assert harness.run(scenario()) == ["released"]
    assert cleaned == [(5.0, True)]


def test_body_that_will_not_stop_is_reported_not_released(harness: WorkerHarness) -> None:
    """A body that ignores its cancellation keeps its claim: another worker runs it only after the lock expired."""
    app = harness.app()

    @app.task
    async def stubborn() -> None:
        while harness.seconds() < 300:
            try:
                await asyncio.sleep(300 - harness.seconds())
            except asyncio.CancelledError:
                continue

    async def scenario() -> None:
        async with app.worker():
            await stubborn.enqueue()
            await app.log.wait(events.RunStarted)
        job = await app.one_job()
        assert job.state is State.CLAIMED
        assert job.lock_expires_at is not None
        assert await app.outcomes() == []
        await asyncio.sleep(300)

    harness.run(scenario())
    assert len(app.log.of(events.BodyStuck)) == 1
    assert app.log.of(events.WorkerStopped)[0].unsettled == 1


def test_stubborn_body_past_its_timeout_keeps_its_place(harness: WorkerHarness) -> None:
    """While a timed-out body runs on, its place stays taken, its lock expires, and its late end is refused."""
    app = harness.app(settings={"worker.concurrency": 1})
    rival = harness.app()

    async def body() -> None:
        while harness.seconds() < 500:
            try:
                await asyncio.sleep(500 - harness.seconds())
            except asyncio.CancelledError:
                continue

    @app.task(name="stubborn", timeout="60s")
    async def stubborn() -> None:
        await body()

    @rival.task(name="stubborn")
    async def obedient() -> None: ...

    async def scenario() -> None:
        async with app.worker() as worker:
            await stubborn.enqueue()
            await app.log.wait(events.BodyStuck)
            assert worker.running == 1
            async with rival.worker():
                await rival.log.wait(events.RunSucceeded)
                assert 180.0 < harness.seconds() < 200.0, "beats end with timeout and grace; the lock two minutes later"
            await app.log.wait(events.LateWriteRefused)
            assert len(app.log.of(events.BodyEndedLate)) == 1

    harness.run(scenario())


def test_shutdown_during_an_outage_ends(harness: WorkerHarness) -> None:
    """A worker that is stopped while the database is away stops: what it could not write expires."""
    app = harness.app(settings={"worker.shutdown_grace": "10s"})

    @app.task
    async def job() -> None:
        await asyncio.sleep(5)

    async def scenario() -> None:
        async with app.worker():
            await job.enqueue()
            await app.log.wait(events.RunStarted)
            app.faults.error = lambda: TransientError("away")
        assert harness.seconds() < 60.0
        app.faults.error = None
        assert (await app.one_job()).state is State.CLAIMED

    harness.run(scenario())
    assert app.log.of(events.WorkerStopped)[0].unsettled == 1


def test_stop_waits_for_calls_that_use_the_worker_s_store(harness: WorkerHarness) -> None:
    """A request on the worker's loop enqueues over the worker's connections: they close after its answer."""
    app = harness.app()
    app.faults.slow["enqueue_jobs"] = 5.0

    @app.task
    async def job() -> None: ...

    async def scenario() -> None:
        async with app.worker():
            request = asyncio.create_task(job.enqueue())
            await asyncio.sleep(1)
        assert request.done()
        assert (await request).created

    harness.run(scenario())


async def cut_off(app: HarnessApp, *, begun: Awaitable[object] | None = None, after: float = 0.0) -> None:
    """Run a worker until a body (or something else) has begun, stop it, and cancel the stop after `seconds`."""

    async def serve() -> None:
        async with app.worker():
            await asyncio.get_running_loop().create_future()

    serving = asyncio.create_task(serve())
    await (begun or app.log.wait(events.RunStarted))
    serving.cancel()
    await app.log.wait(events.WorkerStopping)
    await asyncio.sleep(after)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


@pytest.mark.parametrize("after", [0.0, 7.0])
def test_cancelled_stop_stops_the_bodies(harness: WorkerHarness, after: float) -> None:
    """A cancelled stop waits no longer, but a body that ends in time is still released."""
    app = harness.app(settings={"worker.shutdown_grace": "1h"})

    @app.task
    async def long() -> None:
        await asyncio.sleep(10_000)

    async def scenario() -> None:
        await long.enqueue()
        await cut_off(app, after=after)
        await app.log.wait(events.RunEnded)
        assert await app.outcomes() == ["released"]
        await asyncio.sleep(60)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    harness.run(scenario())
    assert harness.seconds() < 100.0


@pytest.mark.parametrize("after", [0.0, 7.0])
def test_cancelled_stop_renews_no_more(harness: WorkerHarness, after: float) -> None:
    """A body that does not stop loses its lock to another worker, however long the process lives."""
    app, heir = harness.app(settings={"worker.shutdown_grace": "1h"}), harness.app()
    ran = asyncio.Event()

    @app.task(name="stubborn")
    async def stubborn() -> None:
        while not ran.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await ran.wait()

    @heir.task(name="stubborn")
    async def obedient() -> None:
        ran.set()

    async def scenario() -> None:
        await stubborn.enqueue()
        await cut_off(app, after=after)
        async with heir.worker():
            await heir.log.wait(events.RunSucceeded)
        assert 110.0 < harness.seconds() < 130.0, "when the lock of two minutes had ended"
        assert await heir.outcomes() == ["lost", "succeeded"]

    harness.run(scenario())


def test_stop_cancelled_while_outcomes_are_written(harness: WorkerHarness) -> None:
    """The last outcomes are still written, though the caller does not wait."""
    app = harness.app()
    app.faults.slow["complete_jobs"] = 30.0

    @app.task
    async def quick() -> None: ...

    async def scenario() -> None:
        await quick.enqueue()
        await cut_off(app, after=20.0)
        await app.log.wait(events.WorkerStopped)
        assert await app.outcomes() == ["succeeded"]

    harness.run(scenario())


@pytest.mark.parametrize("after", [0.5, 7.0], ids=["while the lease is resigned", "while the poller ends"])
def test_cancelled_stop_begins_nothing_more(harness: WorkerHarness, after: float) -> None:
    """Jobs of a claim that was under way are released unbegun: no worker would renew or stop them."""
    app = harness.app(settings={"maintenance.coordination": "lease"})
    begun = []

    @app.task
    async def job() -> None:
        begun.append(harness.seconds())

    async def claim_on_its_way() -> None:
        await app.log.wait(events.LeaseAcquired)
        app.faults.slow |= {"resign_lease": 30.0, "claim_jobs": 60.0}
        await job.enqueue()
        await asyncio.sleep(1)

    async def scenario() -> None:
        await cut_off(app, begun=claim_on_its_way(), after=after)
        await app.log.wait(events.WorkerStopped)
        assert await app.outcomes() == ["released"]
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    harness.run(scenario())
    assert begun == []


def test_cancelled_stop_watches_no_more(harness: WorkerHarness) -> None:
    """The listener on the database gets nothing more, whatever the stop was doing when it was cancelled."""
    app = harness.app(settings={"maintenance.coordination": "lease"}, watch=timedelta(seconds=1))

    async def leading() -> None:
        await app.log.wait(events.LeaseAcquired)
        app.faults.slow["resign_lease"] = 30.0

    async def scenario() -> None:
        await cut_off(app, begun=leading(), after=0.5)
        await app.log.wait(events.WorkerStopped)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    harness.run(scenario())


@pytest.mark.slow
async def test_cancelled_stop_ends_the_heartbeat_thread(live: WorkerHarness) -> None:
    """The heartbeats have their own thread and loop: they must not continue when the worker's loop has gone."""
    app = live.app(settings={"worker.shutdown_grace": "1h"})
    others = set(threading.enumerate())
    beating: list[threading.Thread] = []

    @app.task
    async def long() -> None:
        beating.extend(thread for thread in set(threading.enumerate()) - others if thread.name == "Beater")
        await asyncio.sleep(10_000)

    await long.enqueue()
    await cut_off(app)
    (beater,) = beating
    beater.join(10.0)
    assert not beater.is_alive()
    app.close()


def test_worker_that_cannot_start_leaves_nothing_open(harness: WorkerHarness) -> None:
    """An error while starting reaches the caller, and the connections are closed (an open one would be a warning)."""
    app = harness.app()
    app.faults.error, app.faults.verbs = lambda: TransientError("away"), {"register_worker"}

    async def scenario() -> None:
        with pytest.raises(TransientError):
            async with app.worker():
                raise AssertionError("it started")
        app.faults.error = None
        async with app.worker():
            pass

    harness.run(scenario())


@pytest.mark.slow
async def test_stuck_thread_is_reported_and_does_not_keep_the_worker(live: WorkerHarness) -> None:
    """A thread cannot be forced to stop: after the graces the worker ends, and does not release its claim."""
    app = live.app(settings={"worker.stop_grace": "20ms"})
    let_go = threading.Event()

    @app.task
    def ignores_stop() -> None:
        let_go.wait()

    async with app.worker():
        await ignores_stop.enqueue()
        await app.log.wait(events.RunStarted)
    assert len(app.log.of(events.BodyStuck)) == 1
    assert app.log.of(events.WorkerStopped)[0].unsettled == 1
    assert (await app.one_job()).state is State.CLAIMED
    assert await app.runs() == []
    let_go.set()
    app.close()
