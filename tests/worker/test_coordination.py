"""The four coordinations in real time, on real databases: each does the maintenance, and survives its worker's end."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from reltask import App, events
from reltask.errors import SettingsError
from reltask.model.clock import SystemClock
from reltask.model.job import WorkerRecord
from reltask.model.settings import DatabaseSettings, MaintenanceSettings
from reltask.stores.choose import make_store
from reltask.worker import coordination, maintenance
from reltask.worker.coordination import Advisory
from tests.cluster.cluster import slowness
from tests.mssql_server import databases
from tests.worker.worker_harness import LIVE_PATIENCE, Recorder, working

OFFERED = [
    (database, name)
    for database in databases()
    for name in ("lease", "everyone", "stealing", "advisory")
    if (database, name) != ("sqlite", "advisory")
]
EXCLUSIVE = [(database, name) for database, name in OFFERED if name in {"lease", "advisory"}]
"""Coordinations in which one worker at a time does the maintenance."""
TEN_DAYS = timedelta(days=10)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers take part at once, and try often."""
    monkeypatch.setattr(maintenance, "FIRST_AFTER", (0.0, 0.0))
    monkeypatch.setattr(coordination, "TRY_EVERY", (0.05, 0.1))


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of the kind that the test's parameters name."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/reltask.db"
    return str(request.getfixturevalue(f"{request.param}_url"))


def make_app(
    url: str, name: str, *, ago: timedelta = timedelta(0), ttl: timedelta = timedelta(seconds=1)
) -> tuple[App, Recorder]:
    """An app whose maintenance is always due. Its database clock may be set to the past."""
    often = {f"maintenance.{step}": "50ms" for step in ("reclaim", "dead_workers", "roll_up", "prune")}
    given = {**often, "maintenance.coordination": name, "maintenance.lease_ttl": ttl * slowness(url)}
    app = App(url, settings=given, now=(lambda: datetime.now(UTC) - ago) if ago else None)

    @app.task(max_attempts=1)
    async def work() -> None: ...

    log = Recorder()
    app.subscribe(log)
    return app, log


async def die(url: str, name: str) -> None:
    """A worker whose last heartbeat is ten days old."""
    app, _ = make_app(url, "off", ago=TEN_DAYS)
    record: dict[str, Any] = {"host": "far", "pid": 7, "version": "1", "queues": [], "tasks": [], "concurrency": 1}
    died = WorkerRecord(id=name, app_version=None, alive_for=timedelta(minutes=1), **record)
    await app._client.run(lambda store: store.register_worker(died), name="register")
    await asyncio.to_thread(app.close)


async def run_in_the_past(url: str) -> None:
    """Three runs in the ledger that are ten days old."""
    app, _ = make_app(url, "off", ago=TEN_DAYS)
    async with app.worker() as worker:
        for _ in range(3):
            await app.get_task("work").enqueue()
        await worker.drained()
    await asyncio.to_thread(app.close)


@pytest.mark.slow
@pytest.mark.parametrize(("url", "name"), OFFERED, indirect=["url"])
async def test_each_coordination_does_the_maintenance(url: str, name: str) -> None:
    """With three workers: old runs are pruned, a dead worker is marked once, and runs are counted."""
    await run_in_the_past(url)
    await die(url, "gone")
    log = Recorder()
    async with AsyncExitStack() as workers, asyncio.timeout(LIVE_PATIENCE * slowness(url)):
        for _ in range(3):
            app, _ = make_app(url, name)
            app.subscribe(log)
            await workers.enter_async_context(working(app))
        await app.get_task("work").enqueue()
        await log.wait(events.RunSucceeded)
        await log.wait(events.WorkerDied)
        await log.wait(events.RunsPruned)
        while not (stats := await app.stats()):  # noqa: ASYNC110 - counting sends no event
            await asyncio.sleep(0.02)
        assert [run.outcome for run in await app.runs()] == ["succeeded"]
    assert [(one.task, one.runs, one.failed) for one in stats] == [("work", 1, 0)]
    assert [event.who for event in log.of(events.WorkerDied)] == ["gone"]
    assert sum(event.count for event in log.of(events.RunsPruned)) == 3
    assert log.of(events.MaintenanceFailed) == []


@pytest.mark.slow
@pytest.mark.parametrize(("url", "name"), EXCLUSIVE, indirect=["url"])
async def test_when_the_one_that_does_it_stops_another_goes_on(url: str, name: str) -> None:
    """A worker that stops gives its turn back at once: the next one does not wait for a timeout."""
    (first, one), (second, two) = (make_app(url, name, ttl=timedelta(minutes=10)) for _ in range(2))
    async with AsyncExitStack() as later:
        async with working(first):
            await die(url, "a")
            await one.wait(events.WorkerDied)
            await later.enter_async_context(working(second))
            await die(url, "b")
            await one.wait(events.WorkerDied, 2)
        await die(url, "c")
        await two.wait(events.WorkerDied)
    assert [event.who for event in two.of(events.WorkerDied)] == ["c"]


@pytest.mark.slow
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_a_lost_connection_is_a_lost_advisory_lock(url: str) -> None:
    """The holder checks the lock before each turn; if its connection has died, it stops."""
    stores = [make_store(url, DatabaseSettings(), clock=SystemClock(), rng=random.Random(1)) for _ in range(2)]
    one, two = (Advisory(store, random.Random(1)) for store in stores)
    assert await one.turn() is not None
    assert await two.turn() is None
    assert await holders(url, kill=True) == 1
    while await holders(url):  # noqa: ASYNC110 - the server ends a session when it gets to it
        await asyncio.sleep(0.01)
    assert await two.turn() is not None
    assert await one.turn() is None
    await two.stop()
    assert await one.turn() is not None
    await one.stop()
    assert await holders(url) == 0


async def holders(url: str, *, kill: bool = False) -> int:
    """How many sessions of this database hold an advisory lock; optionally end them."""
    observer = await asyncpg.connect(url)
    try:
        rows = await observer.fetch(
            """select case when $1 then pg_terminate_backend(pid) end
               from pg_locks
               where locktype = 'advisory' and objsubid = 1
                 and database = (select oid from pg_database where datname = current_database())""",
            kill,
        )
    finally:
        await observer.close()
    return len(rows)


def test_sqlite_says_what_it_can_offer() -> None:
    """SQLite has no advisory locks: the error names the three coordinations it has."""
    with pytest.raises(SettingsError, match=r"no advisory locks\..*lease.*everyone.*stealing"):
        MaintenanceSettings(coordination="advisory").on("sqlite:///x.db")


def test_a_wrong_coordination_is_refused() -> None:
    """The error lists the known names."""
    with pytest.raises(
        SettingsError, match=r"not one of lease, everyone, advisory, stealing, off\. Did you mean lease"
    ):
        App("sqlite:///x.db", settings={"maintenance.coordination": "leese"}).settings  # noqa: B018 - it is read here


def test_the_lease_is_longer_on_sqlite() -> None:
    """Each beat wakes every process that watches the file. A value that was set is kept on both."""
    settings = MaintenanceSettings()
    assert settings.on("sqlite:///x.db").lease_ttl == timedelta(minutes=1)
    assert settings.on("postgresql://host/x").lease_ttl == timedelta(seconds=10)
    assert MaintenanceSettings(lease_ttl=timedelta(5)).on("sqlite:///x.db").lease_ttl == timedelta(5)
