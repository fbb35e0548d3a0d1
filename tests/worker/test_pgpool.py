"""Workers behind a real Pgpool-II: a session keeps its connection, so every statement and signal comes through."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from reltask import App, Context, events
from tests import pgpool
from tests.postgres_server import PostgresServer
from tests.worker.worker_harness import LIVE_PATIENCE, Recorder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(pgpool.find() is None, reason="Pgpool-II is not installed"),
]


@pytest.fixture
def pooled_url(postgres_server: PostgresServer, postgres_url: str, tmp_path: Path) -> Iterator[str]:
    """The database through Pgpool-II, without any parameter for poolers."""
    with pgpool.pgpool(postgres_server, tmp_path) as port:
        parts = urlsplit(postgres_url)
        yield parts._replace(netloc=f"postgres@127.0.0.1:{port}").geturl()


async def test_jobs_run_once_through_pgpool(pooled_url: str) -> None:
    """Enqueueing, claims, heartbeats, transactions and completions of three workers."""
    apps = [App(pooled_url, settings={"worker.lock_timeout": "4s", "worker.concurrency": 5}) for _ in range(3)]
    ran: list[int] = []
    for app in apps:

        @app.task(name="work")
        async def work(ctx: Context, number: int) -> None:
            ran.append(number)
            if number % 10 == 0:
                async with ctx.transaction() as transaction:
                    await transaction.execute("select pg_sleep(0.01)")
            elif number % 7 == 0:
                await asyncio.sleep(1.5)  # long enough for a heartbeat

    async with asyncio.timeout(2 * LIVE_PATIENCE):
        first = apps[0]
        await first.enqueue_many([first.get_task("work").call(number) for number in range(40)])
        async with apps[0].worker(), apps[1].worker(), apps[2].worker():
            while len(await first.runs(limit=1000)) < 40:  # noqa: ASYNC110 - the ledger tells
                await asyncio.sleep(0.1)
    runs = await first.runs(limit=1000)
    assert sorted(ran) == list(range(40))
    assert {str(run.outcome) for run in runs} == {"succeeded"}
    for app in apps:
        await asyncio.to_thread(app.close)


async def test_signals_come_through_pgpool(pooled_url: str) -> None:
    """A worker that sleeps for a minute starts a job of another process at once."""
    app = App(pooled_url, settings={"maintenance.coordination": "off"})
    producer, log = App(pooled_url), Recorder()
    app.subscribe(log)
    for one in (app, producer):

        @one.task(name="work")
        async def work() -> None: ...

    async with asyncio.timeout(LIVE_PATIENCE), app.worker() as worker:
        await worker.drained()
        assert worker._waking.signals
        await producer.get_task("work").enqueue()
        await log.wait(events.RunSucceeded)
    for one in (app, producer):
        await asyncio.to_thread(one.close)
