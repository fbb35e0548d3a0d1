"""Nothing waits that need not, and no body starts twice without a crash."""

from __future__ import annotations

import asyncio
import threading

import pytest

from reltask import events
from reltask.errors import TransientError
from reltask.model.job import State
from tests.worker.worker_harness import LIVE_PATIENCE, HarnessApp, WorkerHarness

HOUR = {"worker.poll": "1h"}


def rivals(
    harness: WorkerHarness, started: list[tuple[str, float]], *, seconds: float
) -> tuple[HarnessApp, HarnessApp]:
    """Two processes that know the same task; it notes which of them began it, and when."""
    apps = harness.app(), harness.app()
    for name, app in zip("ab", apps, strict=True):

        @app.task(name="work")
        async def work(worker: str = name) -> None:
            started.append((worker, harness.seconds()))
            await asyncio.sleep(seconds)

    return apps


def test_claim_keeps_its_rows_while_its_answer_is_slow(harness: WorkerHarness) -> None:
    """An answer that takes longer than the lock costs nothing: the rows are renewed by the claim's token."""
    started: list[tuple[str, float]] = []
    slow, rival = rivals(harness, started, seconds=1)
    slow.faults.slow["claim_jobs"] = 150.0

    async def scenario() -> list[str]:
        await slow.get_task("work").enqueue()
        async with slow.worker():
            await asyncio.sleep(1)
            async with rival.worker():
                await slow.log.wait(events.RunSucceeded)
                await asyncio.sleep(300)
        return await slow.outcomes()

    assert harness.run(scenario()) == ["succeeded"]
    assert [worker for worker, _ in started] == ["a"]


def test_body_does_not_begin_on_a_claim_that_is_over(harness: WorkerHarness) -> None:
    """An answer that comes after the deadline, with no beat in between: another worker may have the slot."""
    started: list[tuple[str, float]] = []
    slow, rival = rivals(harness, started, seconds=60)
    slow.faults.slow["claim_jobs"] = 150.0
    slow.faults.hanging.add("heartbeat_jobs")

    async def scenario() -> list[str]:
        await slow.get_task("work").enqueue()
        async with slow.worker():
            await asyncio.sleep(1)
            async with rival.worker():
                await rival.log.wait(events.RunSucceeded)
                await asyncio.sleep(60)
        return await rival.outcomes()

    assert harness.run(scenario()) == ["lost", "succeeded"]
    assert [worker for worker, _ in started] == ["b"]


def test_late_claim_that_is_still_ours_is_released_unbegun(harness: WorkerHarness) -> None:
    """Its attempt is given back, and the slot runs at the next claim."""
    started: list[tuple[str, float]] = []
    slow, _ = rivals(harness, started, seconds=1)
    slow.faults.slow["claim_jobs"] = 110.0
    slow.faults.hanging.add("heartbeat_jobs")

    async def scenario() -> list[tuple[str, int]]:
        await slow.get_task("work").enqueue()
        async with slow.worker():
            await asyncio.sleep(10)
            slow.faults.slow.clear()
            await slow.log.wait(events.RunSucceeded)
        return [(run.outcome, run.attempt) for run in await slow.ledger()]

    assert harness.run(scenario()) == [("released", 1), ("succeeded", 1)]
    assert len(started) == 1


def test_ended_body_keeps_its_claim_until_it_is_recorded(harness: WorkerHarness) -> None:
    """A task with a timeout whose settlement has to wait: its body has ended, and must not run again."""
    app, rival = harness.app(), harness.app()
    started: list[str] = []
    for name, owner in (("a", app), ("b", rival)):

        @owner.task(name="work", timeout="5s")
        async def work(worker: str = name) -> None:
            started.append(worker)

    async def scenario() -> list[str]:
        await app.get_task("work").enqueue()
        app.faults.verbs = {"complete_jobs"}
        app.faults.error = lambda: TransientError("the row is locked")
        async with app.worker():
            await app.log.wait(events.RunStarted)
            async with rival.worker():
                await asyncio.sleep(600)
                app.faults.error = None
                await app.log.wait(events.RunSucceeded)
        return await app.outcomes()

    assert harness.run(scenario()) == ["succeeded"]
    assert started == ["a"]


def test_job_that_starves_its_worker_reaches_its_limit(harness: WorkerHarness) -> None:
    """An abandonment that the database did not cause counts, and the next try waits: else it repeats for ever."""
    app = harness.app()
    started: list[float] = []

    @app.task(max_attempts=2)
    async def greedy() -> None:
        started.append(harness.seconds())
        harness.clock.loop.advance(115)  # neither the loop nor the thread that beats gets a turn
        await asyncio.sleep(3600)

    async def scenario() -> None:
        job = await greedy.enqueue()
        async with app.worker():
            await app.log.wait(events.RunEnded, dead=True)
        view = await job.view()
        assert view is not None
        assert (view.state, view.attempt) == (State.DEAD, 2)
        assert await app.outcomes() == ["abandoned", "abandoned"]

    harness.run(scenario())
    assert len(started) == 2
    assert started[1] - started[0] > 116, "delayed by the backoff"


def test_abandonment_that_the_database_caused_does_not_count(harness: WorkerHarness) -> None:
    """Beats were sent, and the database did not answer: the attempt is given back."""
    app = harness.app()

    @app.task(max_attempts=1)
    async def work() -> None:
        await asyncio.sleep(200 if app.faults.hanging else 1)

    async def scenario() -> list[tuple[str, int]]:
        app.faults.hanging.add("heartbeat_jobs")
        await work.enqueue()
        async with app.worker():
            await app.log.wait(events.RunAbandoned)
            app.faults.hanging.clear()
            await app.log.wait(events.RunSucceeded)
        return [(run.outcome, run.attempt) for run in await app.ledger()]

    assert harness.run(scenario()) == [("abandoned", 1), ("succeeded", 1)]


@pytest.mark.slow
async def test_blocked_subscriber_delays_no_stop(live: WorkerHarness) -> None:
    """All bodies whose claims are over are stopped before the first event is emitted, and no beat waits for one."""
    app = live.app(settings={"worker.lock_timeout": "4s", "worker.heartbeat": "1s", "worker.beat_timeout": "0.2s"})
    blocked, go_on = threading.Event(), threading.Event()
    stopped = [threading.Event() for _ in range(3)]

    @app.task
    async def work(number: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped[number].set()

    def slow(event: events.Event) -> None:
        if isinstance(event, events.RunAbandoned):
            blocked.set()
            assert go_on.wait(20)

    app.subscribe(slow)
    for number in range(3):
        await work.enqueue(number)

    def all_stopped() -> bool:
        return blocked.wait(20) and all(event.wait(20) for event in stopped)

    async with app.worker():
        await app.log.wait(events.RunStarted, 3)
        app.faults.hanging.add("heartbeat_jobs")
        try:
            assert await asyncio.get_running_loop().run_in_executor(None, all_stopped)
            app.faults.hanging.clear()  # the jobs are claimed again, while the subscriber still blocks
            beats = app.faults.calls["heartbeat_jobs"]
            async with asyncio.timeout(LIVE_PATIENCE):
                while app.faults.calls["heartbeat_jobs"] < beats + 2:  # noqa: ASYNC110 - the time is real
                    await asyncio.sleep(0.05)
        finally:
            go_on.set()
            app.faults.hanging.clear()
