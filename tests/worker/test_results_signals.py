"""Results on PostgreSQL: the worker that ends an awaited job notifies the process that waits."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from reltask import App, Cancellation, JobCancelled
from reltask.producer import result
from tests.worker.worker_harness import working

pytestmark = pytest.mark.slow
HOURS = 3600.0


def make_app(url: str) -> tuple[App, Any]:
    app = App(url, settings={"worker.concurrency": 50})

    @app.task
    async def hold(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    return app, hold


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that looks twice, and then relies on signals."""
    monkeypatch.setattr(result, "LONGEST_PAUSE", HOURS)


@pytest.mark.usefixtures("patient")
async def test_the_end_of_an_awaited_job_is_signalled(postgres_url: str) -> None:
    """Also of jobs that end long after the last look; the caller is another app, with a store of its own."""
    (workers, _), (callers, hold) = make_app(postgres_url), make_app(postgres_url)
    async with working(workers):
        jobs = [await hold.enqueue(0.3 + nth / 20) for nth in range(10)]
        waits = [asyncio.to_thread(job.result_sync, timeout="25s") for job in jobs]
        assert await asyncio.gather(*waits) == [0.3 + nth / 20 for nth in range(10)]
        waiting = asyncio.ensure_future((await hold.using(delay="1h").enqueue(0)).result(timeout="25s"))
        await asyncio.sleep(0.2)
        (view,) = await callers.jobs()
        assert await workers.job(view.id).cancel() is Cancellation.CANCELLED
        with pytest.raises(JobCancelled):
            await waiting
    await asyncio.to_thread(callers.close)


async def test_a_result_that_came_before_the_wait_is_found(postgres_url: str) -> None:
    """Listen, then look: no signal comes any more."""
    app, hold = make_app(postgres_url)
    async with working(app):
        job = await hold.enqueue(0)
        while await job.view() is not None:  # noqa: ASYNC110 - a worker ends it
            await asyncio.sleep(0.01)
        other, _ = make_app(postgres_url)
        assert await asyncio.to_thread(other.get_task("hold").job(id=job.id).result_sync, timeout="20s") == 0
        await asyncio.to_thread(other.close)


async def test_jobs_that_are_not_awaited_are_not_signalled(postgres_url: str) -> None:
    """A thousand callers cost one listener and about one look a second; plain jobs beside them cost no notification."""
    app, hold = make_app(postgres_url)
    ended: list[str] = []
    connection = await asyncpg.connect(postgres_url)
    await connection.add_listener("reltask_ended", lambda *heard: ended.append(heard[-1]))
    async with working(app):
        await app.enqueue_many(hold.call(0) for _ in range(50))
        other, other_hold = make_app(postgres_url)
        awaited = await other.enqueue_many(other_hold.using(delay="1h").call(0) for _ in range(1000))
        connections = "select count(*) from pg_stat_activity where datname = current_database()"
        before = await connection.fetchval(connections)
        waits = [asyncio.ensure_future(job.result()) for job in awaited]
        done = await hold.enqueue(0)
        assert await done.result(timeout="20s") == 0
        # Two processes' worth of apps wait here: each has one listener, and one connection to look with.
        assert await connection.fetchval(connections) <= before + 4
        await awaited[0].run_now()
        assert await asyncio.wait_for(waits[0], 20) == 0
        for wait in waits:
            wait.cancel()
        await asyncio.to_thread(other.close)
    await connection.close()
    assert {job_id for payload in ended for job_id in payload.split()} <= {str(done.id), str(awaited[0].id)}
