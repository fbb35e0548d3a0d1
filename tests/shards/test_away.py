"""A shard that is away stalls itself alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

import reltask.worker.shards
from reltask import App
from reltask.errors import AmbiguousError, TransientError
from reltask.model.shards import rendezvous, shard_of
from reltask.worker.shards import ShardedWorker
from tests.postgres_server import PostgresServer
from tests.shards.conftest import SHARDS, System
from tests.shards.gate import Gate

PATIENCE = 60.0
AWAY = SHARDS - 1


@pytest.fixture
def kind() -> str:
    return "postgres databases"


@pytest.fixture
async def gate(postgres_server: PostgresServer) -> AsyncIterator[Gate]:
    """Before the last shard."""
    gate = Gate(postgres_server.port)
    await gate.open()
    yield gate
    await gate.close()


@pytest.fixture
def gated(system: System, gate: Gate, postgres_server: PostgresServer) -> System:
    """A system whose last shard is behind the gate."""
    system.urls[AWAY] = system.urls[AWAY].replace(f":{postgres_server.port}/", f":{gate.port}/")
    return system


def on(shard: int, count: int) -> list[str]:
    """Keys that live on this shard."""
    found = (f"key-{n}" for n in range(10_000) if rendezvous(f"key-{n}", range(SHARDS)) == shard)
    return [next(found) for _ in range(count)]


def counting(app: App) -> Any:
    async def work(x: int) -> int:
        return x

    return app.task(work)


async def test_a_shard_that_is_away_at_the_start_is_joined_later(
    gated: System, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker serves the others meanwhile. Then it runs what waits there."""
    monkeypatch.setattr(reltask.worker.shards, "START_PATIENCE", 0.2)
    monkeypatch.setattr(reltask.worker.shards, "TRY_AGAIN", 0.2)
    app = gated.app()
    work = counting(app)
    waiting = await work.using(key=on(AWAY, 1)[0]).enqueue(7)
    app.close()
    await gate.close()
    joined = asyncio.Event()
    app.subscribe(lambda event: joined.set() if "join shard" in getattr(event, "verb", "") else None)
    async with app.worker() as worker, asyncio.timeout(PATIENCE):
        assert AWAY not in cast("ShardedWorker", worker).serves
        jobs = [await work.using(key=key).enqueue(1) for key in (*on(0, 3), *on(1, 3))]
        assert [await job.result() for job in jobs] == [1] * 6
        await joined.wait()
        await gate.open()
        assert await waiting.result() == 7
        assert AWAY in cast("ShardedWorker", worker).serves


@pytest.mark.parametrize("how", ["refused", "silent"])
async def test_the_others_go_on_with_one_place(gated: System, gate: Gate, how: str) -> None:
    """Even a worker with one place, whose claim on the lost shard is never answered, runs jobs of the others."""
    app = gated.app(settings={"worker.concurrency": 1, "worker.poll": "500ms", "database.command_timeout": "10m"})
    work = counting(app)
    async with app.worker() as worker, asyncio.timeout(PATIENCE):
        first = [await work.using(key=key).enqueue(1) for shard in range(SHARDS) for key in on(shard, 1)]
        for job in first:
            await job.result()
        if how == "silent":
            gate.silence()
            room = cast("ShardedWorker", worker)._room
            worker.wake()
            while not room._under_way:  # noqa: ASYNC110 - the claim that is never answered
                await asyncio.sleep(0)
        else:
            await gate.close()
        jobs = [await work.using(key=key).enqueue(1) for key in (*on(0, 10)[1:], *on(1, 10)[1:])]
        for job in jobs:
            await job.result()
        await gate.open()


async def test_status_names_it_and_jobs_without_a_key_avoid_it(gated: System, gate: Gate) -> None:
    """A key that lives there is refused with an error that names the shard."""
    app = gated.app(settings={"database.breaker_failures": 1})
    work = counting(app)
    await work.enqueue(0)
    await gate.close()
    (key,) = on(AWAY, 1)
    with pytest.raises((TransientError, AmbiguousError), match=f"Shard {AWAY}"):
        await work.using(key=key).enqueue(1)
    assert (await app.status()).away == [AWAY]
    assert [shard.answers for shard in await app.shards()] == [True, True, False]
    jobs = [await work.enqueue(n) for n in range(10)]
    assert AWAY not in {shard_of(job.id) for job in jobs}
    await gate.open()
