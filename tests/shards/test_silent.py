"""No call about one shard waits for another one that is silent: it takes questions, and answers when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

import reltask.app
import reltask.stores.shards
import reltask.worker.shards
from reltask import App, events
from reltask.errors import SettingsError, TransientError
from reltask.model.shards import shard_of
from reltask.stores.choose import make_store
from reltask.worker.shards import ShardedWorker
from tests.shards.conftest import SHARDS, System, task_of
from tests.shards.test_shards import keys_of

PATIENCE = 30.0
"""Only a call that would never end takes so long."""
SILENT = SHARDS - 1


class Line:
    """The line to the last shard."""

    def __init__(self) -> None:
        self.silent = False
        self.refusal: Exception | None = None

    async def pass_on(self) -> None:
        while self.silent:  # noqa: ASYNC110 - callers come from several loops
            await asyncio.sleep(0.005)
        if self.refusal is not None:
            raise self.refusal


class LinedStore:
    """A store behind that line."""

    def __init__(self, inner: Any, line: Line) -> None:
        self._inner = inner
        self._line = line

    def dedicated(self, **options: Any) -> Any:
        return LinedStore(self._inner.dedicated(**options), self._line)

    @asynccontextmanager
    async def listen(self, *args: Any, **named: Any) -> AsyncIterator[bool]:
        await self._line.pass_on()
        async with self._inner.listen(*args, **named) as heard:
            yield heard

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)
        if verb in ("close", "bulk", "borrow", "transaction"):
            return found

        async def call(*args: Any, **named: Any) -> Any:
            await self._line.pass_on()
            return await found(*args, **named)

        return call


@pytest.fixture
def kind() -> str:
    return "sqlite files"


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    """Every store of the last shard is behind it, and every patience is short."""
    line = Line()

    def make(url: str, *args: Any, **named: Any) -> Any:
        store: Any = make_store(url, *args, **named)
        return LinedStore(store, line) if f"shard{SILENT}.db" in url else store

    monkeypatch.setattr(reltask.app, "make_store", make)
    monkeypatch.setattr(reltask.stores.shards, "PATIENCE", 0.02)
    monkeypatch.setattr(reltask.stores.shards, "GLANCE", 0.02)
    monkeypatch.setattr(reltask.stores.shards, "FRESH", 0.0)
    monkeypatch.setattr(reltask.worker.shards, "START_PATIENCE", 0.02)
    monkeypatch.setattr(reltask.worker.shards, "TRY_AGAIN", 0.02)
    return line


def until(app: App, wanted: Callable[[events.Event], bool]) -> asyncio.Event:
    """Set when such an event has come."""
    loop, found = asyncio.get_running_loop(), asyncio.Event()

    def note(event: events.Event) -> None:
        if wanted(event):
            loop.call_soon_threadsafe(found.set)

    app.subscribe(note)
    return found


async def test_producers_and_workers_start_while_a_shard_is_silent(system: System, line: Line) -> None:
    """Jobs of the others are enqueued, run and awaited; what waited on the silent shard runs when it answers."""
    app = system.app()
    add = task_of(app)
    waiting = await add.using(key=keys_of(SILENT, 1)[0]).enqueue(1)
    app.close()
    line.silent = True
    async with asyncio.timeout(PATIENCE), app.producer(), app.worker():
        for shard in range(SILENT):
            assert await (await add.using(key=keys_of(shard, 1)[0]).enqueue(shard)).result() == shard + 1
        anywhere = [await add.enqueue(n) for n in range(12)]
        assert SILENT not in {shard_of(job.id) for job in anywhere}
        assert [await job.result() for job in anywhere] == list(range(1, 13))
        for _ in range(2):
            assert (await app.status()).away == [SILENT]
            assert [shard.answers for shard in await app.shards()] == [True] * SILENT + [False]
        line.silent = False
        assert await waiting.result() == 2


async def test_results_of_one_shard_do_not_wait_for_another(system: System, line: Line) -> None:
    """Also in a process that has waited for a job of the silent shard all the time."""
    app = system.app()
    add = task_of(app)
    async with asyncio.timeout(PATIENCE), app.producer(), app.worker():
        late = await add.using(key=keys_of(SILENT, 1)[0], delay="1h").enqueue(1)
        result = asyncio.ensure_future(late.result())
        assert await (await add.enqueue(1)).result() == 2
        line.silent = True
        for n in range(3):
            assert await (await add.using(key=keys_of(0, 3)[n]).enqueue(n)).result() == n + 1
        assert not result.done()
        line.silent = False
        await late.run_now()
        assert await result == 2


async def test_a_taken_key_is_found_while_another_shard_is_silent(system: System, line: Line) -> None:
    """Enqueued again, it is the same job, in the transaction of a call and in bulk."""
    app = system.app()
    add = task_of(app)
    keys = [*keys_of(0, 2), *keys_of(1, 2)]
    async with asyncio.timeout(PATIENCE), app.producer():
        first = [await add.using(key=key, delay="1h").enqueue(1) for key in keys]
        line.silent = True
        assert [(await add.using(key=key).enqueue(1)).id for key in keys] == [job.id for job in first]
        again = await app.enqueue_many(add.using(key=key).call(1) for key in keys)
        assert [(job.id, job.created) for job in again] == [(job.id, False) for job in first]


async def test_a_job_without_a_key_goes_to_another_shard_if_its_own_refuses(
    system: System, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones after the loss, too: no call fails while another shard answers."""
    monkeypatch.setattr(reltask.stores.shards, "FRESH", 60.0)
    app = system.app()
    add = task_of(app)
    async with asyncio.timeout(PATIENCE), app.producer():
        await app.enqueue_many(add.call(n) for n in range(3))
        line.refusal = TransientError("The server is being restarted.")
        jobs = []
        for n in range(20):
            app._placement.answered(SILENT)  # type: ignore[union-attr] # it has shards
            jobs.append(await add.enqueue(n))
        assert SILENT not in {shard_of(job.id) for job in jobs}


async def test_an_enqueue_wakes_the_engine_of_its_shard_alone(
    system: System, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An enqueue on one of eight shards costs one claim, not eight. `app.notify` looks everywhere."""
    del line
    app = system.app()
    add = task_of(app)
    woken: list[int] = []
    async with asyncio.timeout(PATIENCE), app.producer(), app.worker() as worker:
        for number, one in cast("ShardedWorker", worker)._workers.items():
            monkeypatch.setattr(one, "wake", lambda *_, number=number: woken.append(number))
        for shard in (1, 0, 1):
            await add.using(key=keys_of(shard, 2)[1], delay="1h").enqueue(1)
        assert woken == [1, 0]
        await app.notify()
        assert woken == [1, 0, *range(SHARDS)]


async def test_a_shard_that_comes_back_wrong_is_joined_once_it_is_right(system: System, line: Line) -> None:
    """A worker reports what is wrong with a shard that was away when it started, and tries again."""
    app = system.app()
    add = task_of(app)
    waiting = await add.using(key=keys_of(SILENT, 1)[0]).enqueue(1)
    app.close()
    line.silent = True
    reported = until(app, lambda event: "restored" in getattr(event, "error", ""))
    async with asyncio.timeout(PATIENCE), app.worker():
        line.refusal, line.silent = SettingsError("It is being restored."), False
        await reported.wait()
        line.refusal = None
        assert await waiting.result() == 2
