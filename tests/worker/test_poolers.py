"""Workers behind a real pooler: every statement works there, and signals arrive past it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from reltask import App, Context, events
from reltask.errors import PermanentError
from tests import pgbouncer, pgpool
from tests.postgres_server import PostgresServer
from tests.worker.worker_harness import LIVE_PATIENCE, Recorder

pytestmark = pytest.mark.slow
POOLERS = [
    pytest.param(pgbouncer, marks=pytest.mark.skipif(pgbouncer.find() is None, reason="PgBouncer is not installed")),
    pytest.param(pgpool, marks=pytest.mark.skipif(pgpool.find() is None, reason="Pgpool-II is not installed")),
]


@pytest.fixture(params=POOLERS, ids=["PgBouncer", "Pgpool-II"])
def pooled_url(
    request: pytest.FixtureRequest, postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> Iterator[str]:
    """The database through PgBouncer in transaction mode with fewer connections than clients, or through Pgpool-II."""
    with request.param.running(postgres_server, tmp_path) as port:
        yield pgbouncer.through(postgres_url, port)


async def test_jobs_run_once_through_the_pooler(pooled_url: str) -> None:
    """Enqueueing, claims, heartbeats, transactions and completions of four workers."""
    apps = [App(pooled_url, settings={"worker.lock_timeout": "4s", "worker.concurrency": 5}) for _ in range(4)]
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
        await first.enqueue_many([first.get_task("work").call(number) for number in range(60)])
        async with apps[0].worker(), apps[1].worker(), apps[2].worker(), apps[3].worker():
            while len(await first.runs(limit=1000)) < 60:  # noqa: ASYNC110 - the ledger tells
                await asyncio.sleep(0.1)
    runs = await first.runs(limit=1000)
    assert sorted(ran) == list(range(60))
    assert {str(run.outcome) for run in runs} == {"succeeded"}
    for app in apps:
        await asyncio.to_thread(app.close)


async def test_signals_arrive_past_the_pooler(pooled_url: str, postgres_url: str) -> None:
    """`database.signals_url` is a direct connection to listen on; signals themselves are sent through the pooler."""
    app = App(pooled_url, settings={"database.signals_url": postgres_url, "maintenance.coordination": "off"})
    producer, log = App(pooled_url), Recorder()
    app.subscribe(log)
    for one in (app, producer):

        @one.task(name="work")
        async def work() -> None: ...

    async with asyncio.timeout(LIVE_PATIENCE), app.worker() as worker:
        await worker.drained()
        assert worker._waking.signals
        looked = [event for event in log.events if isinstance(event, events.Idle)]
        assert looked[-1].seconds > 10, "with signals it does not take turns"
        await producer.get_task("work").enqueue()
        await log.wait(events.RunSucceeded)
    for one in (app, producer):
        await asyncio.to_thread(one.close)


async def test_without_the_second_url_idle_workers_take_turns(pooled_url: str) -> None:
    """No connection listens: a job of another process is found within a turn or two."""
    app, producer, log = App(pooled_url), App(pooled_url), Recorder()
    app.subscribe(log)
    for one in (app, producer):

        @one.task(name="work")
        async def work() -> None: ...

    async with asyncio.timeout(LIVE_PATIENCE), app.worker() as worker:
        await worker.drained()
        assert not worker._waking.signals
        await producer.get_task("work").enqueue()
        await log.wait(events.RunSucceeded)
    for one in (app, producer):
        await asyncio.to_thread(one.close)


@pytest.mark.skipif(pgpool.find() is None, reason="Pgpool-II is not installed")
async def test_what_a_pooler_leaves_uncommitted_is_an_error(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    """Pgpool-II in the mode `raw` answers a write and keeps its transaction open: that is no success."""
    with pgpool.running(postgres_server, tmp_path, mode="raw") as port:
        app = App(pgbouncer.through(postgres_url, port))

        @app.task(name="work")
        async def work() -> None: ...

        with pytest.raises(PermanentError, match="not committed"):
            await work.enqueue()
        await asyncio.to_thread(app.close)
    direct = App(postgres_url)
    assert (await direct.status()).due == 0
    await asyncio.to_thread(direct.close)
