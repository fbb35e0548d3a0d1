"""Another session holds a row that is no job: a limit's key, a step, a signal, a declaration, the worker itself.

Only what needs that row waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from reltask import App, Context, Limit, Signal, events
from reltask.stores.sqlite.store import SqliteStore
from tests.worker.worker_harness import LIVE_PATIENCE, Recorder, WorkerHarness

pytestmark = pytest.mark.slow
SETTINGS: dict[str, object] = {"worker.shutdown_grace": "0s", "maintenance.coordination": "off"}
JOBS = 20
GO = Signal("go", int)


@asynccontextmanager
async def held(url: str, query: str, *args: object) -> AsyncIterator[asyncpg.Connection]:
    """Another session has locked what the query finds, during the block."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            assert await connection.fetch(f"{query} for update", *args)
            yield connection
    finally:
        await connection.close()


def watched(url: str, **settings: object) -> tuple[App, Recorder]:
    app, log = App(url, settings={**SETTINGS, **settings}), Recorder()
    app.subscribe(log)
    return app, log


async def closed(app: App, log: Recorder) -> None:
    await asyncio.to_thread(app.close)
    assert not log.of(events.DatabaseUnavailable)


@pytest.mark.parametrize("busy", ["tenant:a", "all"])
async def test_held_key_of_a_limit_delays_its_jobs_alone(postgres_url: str, busy: str) -> None:
    """Jobs without a limit, and those of other keys, go on. A job with two keys waits for the one that is held."""
    app, log = watched(postgres_url)
    both = (Limit("tenant", running=1, by="tenant"), Limit("all", running=50))

    @app.task(limit=both)
    async def limited(tenant: str) -> None: ...

    @app.task(limit=Limit("free", running=2))
    async def free(n: int) -> None: ...

    @app.task
    async def plain(n: int) -> None: ...

    async with asyncio.timeout(LIVE_PATIENCE), app.worker():
        await limited.enqueue("a")
        await log.wait(events.RunSucceeded, task="limited")
        async with held(postgres_url, "select 1 from reltask.limit_keys where key = $1", busy):
            waits = await limited.enqueue("a")
            beside = await limited.enqueue("b")
            for n in range(JOBS):
                await plain.enqueue(n)
                await free.enqueue(n)
            await log.wait(events.RunSucceeded, JOBS, task="plain")
            await log.wait(events.RunSucceeded, JOBS, task="free")
            if busy == "tenant:a":
                await log.wait(events.RunSucceeded, job_id=beside.id)
            assert not log.of(events.RunStarted, job_id=waits.id)
        for job in (waits, beside):
            await log.wait(events.RunSucceeded, job_id=job.id)
        assert (await app.audit()).violations == 0
    await closed(app, log)


@pytest.mark.parametrize("table", ["steps", "signals"])
async def test_held_step_or_signal_delays_its_function_alone(postgres_url: str, table: str) -> None:
    """Other functions record their steps, and are resumed. Afterwards the function goes on."""
    app, log = watched(postgres_url)

    @app.task
    async def waiting(ctx: Context) -> int:
        return await ctx.wait_for(GO)

    @app.task
    async def stepping(ctx: Context) -> None:
        for n in range(3):
            await ctx.step(f"step:{n}", nothing)

    async with asyncio.timeout(LIVE_PATIENCE), app.worker():
        first, second = await waiting.enqueue(), await waiting.enqueue()
        await log.wait(events.RunEnded, 2, outcome="suspended")
        await app.pause(task="waiting")
        await first.signal(GO, 1)
        async with held(postgres_url, f"select 1 from reltask.{table} where job_id = $1", first.id):
            await app.resume(task="waiting")
            await second.signal(GO, 2)
            for _ in range(JOBS):
                await stepping.enqueue()
            assert await second.result() == 2
            await log.wait(events.RunSucceeded, JOBS, task="stepping")
            assert not log.of(events.RunSucceeded, job_id=first.id)
        assert await first.result() == 1
    await closed(app, log)


async def nothing() -> None: ...


@pytest.mark.parametrize("call", ["enqueue", "cancel"])
async def test_bodies_that_wait_for_another_session_delay_no_other(postgres_url: str, call: str) -> None:
    """A user's open transaction has taken the key, or locked the job, that bodies ask for: the worker goes on."""
    app, log = watched(postgres_url, **{"worker.poll": "1h"})

    @app.task(unique=True)
    async def unique(n: int) -> None: ...

    @app.task
    async def asking() -> None:
        await (unique.enqueue(0) if call == "enqueue" else later.cancel())

    @app.task
    async def plain(n: int) -> None: ...

    later = await plain.using(delay="1d").enqueue(0)
    async with asyncio.timeout(LIVE_PATIENCE), app.worker():
        for n in range(JOBS):
            await plain.using(delay="1s").enqueue(n)
        async with held(postgres_url, "select 1 from reltask.jobs where id = $1", later.id) as connection:
            await unique.using(connection=connection).enqueue(0)
            for _ in range(8):
                await asking.enqueue()
            await log.wait(events.RunStarted, 8, task="asking")
            async with asyncio.timeout(LIVE_PATIENCE / 2):  # sooner than the waiting statements give up
                await log.wait(events.RunSucceeded, JOBS, task="plain")
            assert not log.of(events.RunSucceeded, task="asking")
        await log.wait(events.RunSucceeded, 8, task="asking")
    await closed(app, log)


async def test_worker_starts_while_its_declarations_are_held(postgres_url: str) -> None:
    """It serves other jobs at once, and writes the new limit and the new schedule when it can."""
    old, _ = watched(postgres_url)
    old.task(every="1h", limit=Limit("few", running=1), name="recurring")(nothing)
    async with old.worker():
        before = [one.rule for one in await old.schedules()]
    await asyncio.to_thread(old.close)
    app, log = watched(postgres_url)
    app.task(every="2h", limit=Limit("few", running=7), name="recurring")(nothing)
    plain = app.task(name="plain")(nothing)
    async with asyncio.timeout(LIVE_PATIENCE):
        limit, job = "select 1 from reltask.limits", "select 1 from reltask.jobs where task = 'recurring'"
        async with held(postgres_url, limit), held(postgres_url, job), asyncio.timeout(LIVE_PATIENCE / 2):
            worker = app.worker()
            await worker.__aenter__()
            await plain.enqueue()
            await log.wait(events.RunSucceeded, task="plain")
        limits, rules = list[int | None](), before
        while limits != [7] or rules == before:
            limits = [one.running for one in await app.limits()]
            rules = [one.rule for one in await app.schedules()]
        await worker.__aexit__(None, None, None)
    await closed(app, log)


async def test_worker_stops_while_its_own_row_is_held(postgres_url: str) -> None:
    """Its goodbye is not worth a wait."""
    app, log = watched(postgres_url)
    async with asyncio.timeout(LIVE_PATIENCE):
        worker = app.worker()
        await worker.__aenter__()
        async with held(postgres_url, "select 1 from reltask.workers"):
            await worker.__aexit__(None, None, None)
    await closed(app, log)


def test_function_whose_row_is_held_delays_no_other(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks that could not be folded are left for a second; a mark that comes meanwhile is not."""
    app, locked = harness.app(settings={"worker.poll": "1h"}), True
    fold = SqliteStore.fold_marks

    async def skips(self: SqliteStore, **given: Any) -> int:
        return 0 if locked else await fold(self, **given)

    monkeypatch.setattr(SqliteStore, "fold_marks", skips)

    @app.task
    async def waiting(ctx: Context) -> int:
        return await ctx.wait_for(GO)

    async def scenario() -> float:
        nonlocal locked
        async with app.worker():
            first, second = await waiting.enqueue(), await waiting.enqueue()
            await app.log.wait(events.RunEnded, 2, outcome="suspended")
            await first.signal(GO, 1)
            await asyncio.sleep(0.2)
            locked, began = False, harness.seconds()
            await second.signal(GO, 2)
            await app.log.wait(events.RunSucceeded, job_id=second.id)
            return harness.seconds() - began

    assert harness.run(scenario()) < 0.5
