"""Noticing that somebody else wrote to an SQLite file: told by the system where it tells, by looking where not."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from reltask.stores.sqlite import watch
from reltask.stores.sqlite.adapter import SqliteStore
from reltask.stores.sqlite.session import SqliteOptions

INTERVAL = 0.025
NEVER = 1e6


class Naps:
    """Sleeps by hand: a sleeper waits until the test lets it go."""

    def __init__(self) -> None:
        self._begun: asyncio.Queue[float] = asyncio.Queue()
        self._go = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self._begun.put_nowait(seconds)
        await self._go.wait()
        self._go.clear()

    async def begun(self) -> float:
        """The seconds of the next sleep, as soon as it begins."""
        return await asyncio.wait_for(self._begun.get(), 10)

    async def end(self) -> None:
        """Let it go on, for as many turns of the loop as it can need."""
        self._go.set()
        for _ in range(10):
            await asyncio.sleep(0)

    @property
    def is_awake(self) -> bool:
        return self._begun.empty()


class Watched:
    """How often the change of a file was told, and the sleeps of whoever watches it."""

    def __init__(self) -> None:
        self.naps = Naps()
        self.told = 0

    def changed(self) -> None:
        self.told += 1


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "reltask.db")


@pytest.fixture
def writer(path: str) -> Iterator[sqlite3.Connection]:
    """Somebody else's connection. What it changes is in the log before it commits: it keeps a single page to itself."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma cache_size = 1")
        connection.execute("create table written (x)")
        yield connection


def write(writer: sqlite3.Connection) -> None:
    """So much that it goes to the log before the commit."""
    writer.execute("begin")
    writer.executemany("insert into written values (?)", [(bytes(4000),)] * 20)


def change(writer: sqlite3.Connection) -> None:
    write(writer)
    writer.commit()


@asynccontextmanager
async def watched(path: str) -> AsyncIterator[Watched]:
    """Somebody who watches this file, after the first rest."""
    watcher = Watched()
    async with watch.watching(path, watcher.changed, interval=INTERVAL, sleep=watcher.naps.sleep):
        assert await watcher.naps.begun() == INTERVAL
        await watcher.naps.end()
        yield watcher


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that tells of no write."""
    monkeypatch.setattr(watch, "_open_notices", lambda _: None)


@pytest.fixture
def without_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks unless a write was told of."""
    monkeypatch.setattr(watch, "NET", NEVER)


@pytest.mark.usefixtures("without_net")
async def test_commit_is_told_without_looking_for_it(path: str, writer: sqlite3.Connection) -> None:
    """A commit ends the watcher's wait. Then it rests, however much is written, and does not look before the next."""
    async with watched(path) as watcher:
        for times in (1, 2, 3):
            change(writer)
            assert await watcher.naps.begun() == INTERVAL
            assert watcher.told == times
            await watcher.naps.end()
            assert watcher.naps.is_awake


@pytest.mark.usefixtures("without_net")
async def test_what_is_written_while_the_watcher_rests_is_told_after_it(path: str, writer: sqlite3.Connection) -> None:
    """A rest puts a change off, and loses none."""
    async with watched(path) as watcher:
        change(writer)
        await watcher.naps.begun()
        change(writer)
        await watcher.naps.end()
        await watcher.naps.begun()
        assert watcher.told == 2


@pytest.mark.usefixtures("without_net")
async def test_commit_comes_after_its_write(path: str, writer: sqlite3.Connection) -> None:
    """The write is told of before its commit: the watcher looks again and again, and says nothing before the commit."""
    async with watched(path) as watcher:
        write(writer)
        for nap in watch.NAPS[:3]:
            assert await watcher.naps.begun() == nap
            await watcher.naps.end()
        assert await watcher.naps.begun() == watch.NAPS[3]
        assert watcher.told == 0
        writer.commit()
        await watcher.naps.end()
        assert await watcher.naps.begun() == INTERVAL
        assert watcher.told == 1


@pytest.mark.usefixtures("without_net")
async def test_write_that_is_taken_back_is_given_up(path: str, writer: sqlite3.Connection) -> None:
    """Whoever rolls back leaves a write without a commit: after about a second the watcher waits for the next write."""
    async with watched(path) as watcher:
        write(writer)
        for nap in watch.NAPS:
            assert await watcher.naps.begun() == nap
            if nap == watch.NAPS[-1]:
                writer.rollback()
            await watcher.naps.end()
        assert await watcher.naps.begun() == INTERVAL
        assert watcher.told == 0
        await watcher.naps.end()
        change(writer)
        assert await watcher.naps.begun() == INTERVAL
        assert watcher.told == 1


async def test_write_that_nobody_told_of_is_found(
    path: str, writer: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are file systems whose writes are not told to everybody: a look now and then finds them."""
    silent, open_notices = tmp_path / "silent", watch._open_notices
    silent.touch()
    monkeypatch.setattr(watch, "_open_notices", lambda _: open_notices(str(silent)))
    monkeypatch.setattr(watch, "NET", 0.001)
    change(writer)
    async with watched(path) as watcher:
        change(writer)
        await watcher.naps.begun()
        assert watcher.told == 1


@pytest.mark.usefixtures("deaf")
async def test_where_the_system_does_not_tell_the_watcher_looks(path: str, writer: sqlite3.Connection) -> None:
    """A commit is noticed at the next look; nothing happened, nothing is said."""
    async with watched(path) as watcher:
        for write_first, told in ((False, 0), (True, 1), (False, 1)):
            assert await watcher.naps.begun() == INTERVAL
            assert watcher.told == told - write_first
            if write_first:
                change(writer)
            await watcher.naps.end()
        await watcher.naps.begun()
        assert watcher.told == 1


def test_system_that_has_no_notices_to_give(path: str) -> None:
    """Too many watchers, or no log there to be watched: the file is looked at instead."""
    with closing(watch.Log(f"{path}-wal")) as log:
        assert log.naps == []


async def test_listening_misses_nothing_from_its_first_moment(path: str) -> None:
    """What is written before the first look, but after `listen` has begun, is heard."""
    woken, store = asyncio.Event(), SqliteStore(path)
    await store.open()
    async with store.listen(lambda _: woken.set()) as has_signals:
        assert has_signals
        with closing(sqlite3.connect(path)) as other:
            other.execute("create table written (x)")
        await asyncio.wait_for(woken.wait(), 10)
    await store.close()


async def test_listening_can_be_switched_off(path: str) -> None:
    """In virtual time nobody watches a file."""
    for store in (SqliteStore(path, options=SqliteOptions(watch=None)), SqliteStore(":memory:", inline=True)):
        async with store.listen(lambda _: None) as has_signals:
            assert not has_signals
