"""Another session holds the row of a run that has ended: only that run's outcome waits."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from uuid import UUID

import asyncpg
import pytest

from reltask import App, Context, events
from reltask.worker import settle
from tests.worker.worker_harness import LIVE_PATIENCE, Recorder, WorkerHarness

LOCK = "select from reltask.jobs where id = any ($1::uuid[]) for update"
ENDED = """
insert into reltask_runs (job_id, fence, slot_no, task, queue, attempt, nominal_time, due_at, finished_at, outcome)
values (?, 99, ?, 'work', 'default', 1, 0, 0, 0, 'succeeded')
"""
JOBS = 20
QUICK: dict[str, object] = {
    "worker.lock_timeout": "3s",
    "worker.heartbeat": "400ms",
    "worker.beat_timeout": "300ms",
    "worker.stop_grace": "300ms",
    "worker.poll": "500ms",
}


class Held:
    """An app whose bodies of `work` wait until another session has locked the rows of their jobs."""

    def __init__(self, url: str, settings: dict[str, object], *, timeout: str | None = None) -> None:
        given = {"worker.shutdown_grace": "0s", "maintenance.coordination": "off", **settings}
        self.app = App(url, settings=given)
        self.log = Recorder()
        self.app.subscribe(self.log)
        self.starts: list[int] = []
        self.gate = asyncio.Event()
        self._url = url
        self.begun: asyncio.Queue[UUID] = asyncio.Queue()

        @self.app.task(timeout=timeout, priority=0)
        async def work(ctx: Context, n: int) -> None:
            self.starts.append(n)
            self.begun.put_nowait(ctx.job_id)
            await self.gate.wait()

        @self.app.task
        async def other(n: int) -> None: ...

        self.work, self.other = work, other

    @asynccontextmanager
    async def rows_held(self, count: int = 1) -> AsyncIterator[list[UUID]]:
        """The rows of `count` jobs are locked while their bodies run, and until the end of the block."""
        for n in range(count):
            await self.work.enqueue(n)
        jobs = [await self.begun.get() for _ in range(count)]
        async with self.locked(jobs):
            yield jobs

    @asynccontextmanager
    async def locked(self, jobs: list[UUID]) -> AsyncIterator[None]:
        """Another session has locked the rows of these jobs; then their bodies end."""
        connection = await asyncpg.connect(self._url)
        try:
            async with connection.transaction():
                await connection.execute(LOCK, jobs)
                self.gate.set()
                yield
        finally:
            await connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 5])
async def test_one_held_row_delays_one_outcome(postgres_url: str, concurrency: int) -> None:
    """The others are recorded, and new jobs are claimed, while the row is held; then its outcome is recorded."""
    setup = Held(postgres_url, {"worker.concurrency": concurrency})
    async with asyncio.timeout(LIVE_PATIENCE), setup.app.worker():
        async with setup.rows_held() as (held,):
            for n in range(JOBS):
                await setup.other.enqueue(n)
            await setup.log.wait(events.RunSucceeded, JOBS, task="other")
            await setup.log.wait(events.OutcomeHeld, job_id=held)
            assert not setup.log.of(events.RunSucceeded, job_id=held)
        await setup.log.wait(events.RunSucceeded, job_id=held)
    await asyncio.to_thread(setup.app.close)
    assert setup.starts == [0]
    assert not setup.log.of(events.DatabaseUnavailable)


@pytest.mark.slow
async def test_held_row_keeps_no_place_of_its_queue(postgres_url: str) -> None:
    """In a queue with a limit of its own the next body begins when one has ended, not when that is recorded."""
    limits = {"worker.queues": "default,other", "worker.queue_concurrency": "default=1"}
    setup = Held(postgres_url, {**limits, "worker.poll": "1h"})
    async with asyncio.timeout(LIVE_PATIENCE), setup.app.worker():
        await setup.work.enqueue(0)
        held = await setup.begun.get()
        looks = len(setup.log.of(events.Idle))
        await setup.other.enqueue(0)
        await setup.log.wait(events.Idle, looks + 1)
        async with setup.locked([held]):
            await setup.log.wait(events.RunSucceeded, task="other")
            assert not setup.log.of(events.RunSucceeded, job_id=held)
        await setup.log.wait(events.RunSucceeded, job_id=held)
    await asyncio.to_thread(setup.app.close)


@pytest.mark.slow
async def test_more_held_rows_than_waits(postgres_url: str) -> None:
    """Every outcome is recorded once its row is free."""
    count = settle.WAITS + 3
    setup = Held(postgres_url, {"worker.concurrency": 2 * count})
    async with asyncio.timeout(LIVE_PATIENCE), setup.app.worker():
        async with setup.rows_held(count) as held:
            await setup.log.wait(events.OutcomeHeld, count)
            await setup.other.enqueue(0)
            await setup.log.wait(events.RunSucceeded, task="other")
        await setup.log.wait(events.RunSucceeded, count, task="work")
    await asyncio.to_thread(setup.app.close)
    assert sorted(setup.starts) == list(range(count))
    assert {event.job_id for event in setup.log.of(events.OutcomeHeld)} == set(held)


@pytest.mark.slow
async def test_stop_does_not_wait_for_a_held_row(postgres_url: str) -> None:
    """The worker ends, and reports one run as unsettled: its lock expires."""
    setup = Held(postgres_url, QUICK)
    async with asyncio.timeout(LIVE_PATIENCE), AsyncExitStack() as working:
        await working.enter_async_context(setup.app.worker())
        async with setup.rows_held() as (held,):
            await setup.log.wait(events.OutcomeHeld, job_id=held)
            await working.aclose()
            assert setup.log.of(events.WorkerStopped)[0].unsettled == 1
    await asyncio.to_thread(setup.app.close)


@pytest.mark.slow
async def test_body_whose_row_was_held_for_longer_than_its_lock_runs_once(postgres_url: str) -> None:
    """A waiting outcome gets its row before a reclaim does, also after the task's timeout and its grace."""
    setup = Held(postgres_url, QUICK, timeout="500ms")
    async with asyncio.timeout(LIVE_PATIENCE), setup.app.worker():
        async with setup.rows_held() as (held,):
            await setup.other.using(delay="4s").enqueue(0)
            await setup.log.wait(events.RunSucceeded, task="other")
        await setup.log.wait(events.RunSucceeded, job_id=held)
    await asyncio.to_thread(setup.app.close)
    assert setup.starts == [0]


def test_outcome_that_a_constraint_refuses_does_not_wait(harness: WorkerHarness) -> None:
    """It looks like a held row: not accepted, and the claim is still ours. The statement that waits decides."""
    app = harness.app()

    @app.task
    async def work(ctx: Context) -> None:
        with closing(sqlite3.connect(app.path)) as connection, connection:
            connection.execute(ENDED, (str(ctx.job_id), ctx.slot_no))

    async def scenario() -> None:
        await work.enqueue()
        async with app.worker():
            refused = await app.log.wait(events.LateWriteRefused)
        assert refused.outcome == "succeeded"
        assert harness.seconds() < 1

    harness.run(scenario())
