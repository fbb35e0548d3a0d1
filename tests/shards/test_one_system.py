"""Lists, limits, pauses and the dashboard show all shards as one system."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from reltask import App, Limit
from reltask.cli.limits import command as limits_command
from reltask.model.screens import Cursor, ListedState
from reltask.model.shards import shard_of
from reltask.stores.store import Store
from tests.shards.conftest import SHARDS, System
from tests.shards.test_shards import keys_of

PATIENCE = 60.0
PROGRAM = """
from reltask import App, Limit

app = App(shards={urls!r})

@app.task(limit=Limit("smtp", running=2))
async def send(n: int) -> int:
    return n
"""


def limited(app: App) -> Any:
    """A task of which two may run at once on each shard."""

    @app.task(limit=Limit("smtp", running=2))
    async def send(n: int) -> int:
        return n

    return send


@pytest.fixture
async def store(system: System) -> AsyncIterator[Store]:
    store = system.app()._make_store()
    await store.open()
    yield store
    await store.close()


async def test_a_limit_is_one_row(system: System) -> None:
    """What waits on all shards is added up; a change is written to each of them."""
    app = system.app()
    send = limited(app)
    async with app.worker(), asyncio.timeout(PATIENCE):
        await (await send.enqueue(0)).result()
    for shard in range(SHARDS):
        for key in keys_of(shard, 2):
            await send.using(key=key).enqueue(1)
    (limit,) = await app.limits()
    assert (limit.name, limit.running, limit.waiting, limit.keys) == ("smtp", 2, 2 * SHARDS, 1)
    (counted,) = await app.limit_keys("smtp")
    assert (counted.key, counted.waiting) == ("smtp", 2 * SHARDS)
    await app.change_limit("smtp", running=1)
    for url in system.urls:
        alone = App(url)
        assert [limit.running for limit in await alone.limits()] == [1]
        alone.close()


def test_a_limit_is_changed_by_command(system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`reltask limits change` prints the one limit, however many shards have it."""
    name = f"limited_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(PROGRAM.format(urls=system.urls), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    app = importlib.import_module(name).app
    app.number_shards()

    async def declare() -> None:
        async with app.worker(), asyncio.timeout(PATIENCE):
            await (await app.get_task("send").enqueue(0)).result()

    asyncio.run(declare())
    app.close()
    arguments = ["change", "smtp", "--running", "1", "--app", f"{name}:app"]
    changed = CliRunner().invoke(limits_command, arguments, standalone_mode=False)
    assert changed.exception is None, changed.exception
    assert "running 1" in changed.output
    app.close()


async def test_a_pause_counts_the_due_jobs_of_all_shards(system: System) -> None:
    app = system.app()
    send = limited(app)
    await app.pause(queue="default", reason="maintenance")
    for shard in range(SHARDS):
        await send.using(key=keys_of(shard, 1)[0]).enqueue(1)
    (pause,) = await app.pauses()
    assert (pause.name, pause.due) == ("default", SHARDS)


async def test_lists_are_in_their_order_whichever_shards_have_rows(system: System, store: Store) -> None:
    """The latest dead job comes first, page by page, also if the first shard has none."""
    app = system.app()

    @app.task(max_attempts=1)
    async def bad() -> None:
        raise ValueError("no")

    jobs = [bad.using(key=key) for pair in zip(keys_of(1, 4), keys_of(2, 4), strict=True) for key in pair]
    async with app.worker(), asyncio.timeout(PATIENCE):
        for job in jobs:
            made = await job.enqueue()
            while (view := await made.view()) is None or view.state != "dead":  # noqa: ASYNC110 - other tasks
                await asyncio.sleep(0.01)
    times, after = [], None
    while True:
        page = await store.page_jobs(ListedState.DEAD, after=after, limit=3)
        times += [row.at for row in page.rows]
        if page.next is None:
            break
        after = Cursor(*page.next)
    assert len(times) == len(jobs)
    assert times == sorted(times, reverse=True)


async def test_the_dashboard_shows_all_shards(system: System) -> None:
    """Each screen is shown; the numbers are those of all shards, and a job is found wherever it lives."""
    app = system.app()
    send = limited(app)
    jobs = [await send.using(key=keys_of(shard, 1)[0], delay="1h").enqueue(1) for shard in range(SHARDS)]
    assert [shard_of(job.id) for job in jobs] == list(range(SHARDS))
    dashboard = app.dashboard()
    transport = httpx.ASGITransport(app=dashboard)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as browser:
        for screen in ("/", "/jobs", "/tasks", "/queues", "/schedules", "/dead", "/workers", "/leases", "/actions"):
            assert (await browser.get(screen)).status_code == 200, screen
        listed = (await browser.get("/jobs?state=later")).text
        for job in jobs:
            assert str(job.id) in listed
            assert (await browser.get(f"/jobs/{job.id}")).status_code == 200
        metrics = (await browser.get("/metrics")).text
        assert [line for line in metrics.splitlines() if line.startswith("reltask_jobs{") and line.endswith(" 3.0")]
    await asyncio.to_thread(dashboard.close)
