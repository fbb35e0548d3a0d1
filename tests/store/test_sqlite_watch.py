"""Noticing another process's writes to an SQLite file: by the system's notifications, or by looking."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from reltask.stores.sqlite import watch
from reltask.stores.sqlite.connections import SqliteOptions
from reltask.stores.sqlite.store import SqliteStore
from reltask.stores.sqlite.watch import REST
from reltask.testing import virtual_time

INTERVAL = 0.025
MOMENT = 0.002
"""Longer than the time to the second look after a write, and shorter than a full rest."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "reltask.db")


@pytest.fixture
def writer(path: str) -> Iterator[sqlite3.Connection]:
    """Another connection.

    It has a cache of one page, so its changes reach the log before the commit.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma cache_size = 1")
        connection.execute("create table written (x)")
        yield connection


def write(writer: sqlite3.Connection) -> None:
    """Large enough to reach the log before the commit."""
    if not writer.in_transaction:
        writer.execute("begin")
    writer.executemany("insert into written values (?)", [(bytes(4000),)] * 20)


def change(writer: sqlite3.Connection) -> None:
    write(writer)
    writer.commit()


class Watcher:
    """Records changes in virtual time: each moment is exact."""

    def __init__(self) -> None:
        self.heard: list[float] = []

    def changed(self) -> None:
        self.heard.append(asyncio.get_running_loop().time())


def watch_file(path: str, scenario: Callable[[Watcher], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario while a watcher runs, some time after its start."""

    async def watched() -> None:
        watcher = Watcher()
        async with watch.watching(path, watcher.changed, interval=INTERVAL, sleep=asyncio.sleep):
            await asyncio.sleep(10.01)
            await scenario(watcher)

    with virtual_time() as time:
        time.run(watched())


async def passing(seconds: float) -> float:
    """Let time pass; return the time before."""
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(seconds)
    return began


class Looks:
    """Counts looks, and makes a commit visible as late as on a slow disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.blind_until = 0.0
        self.another_at = float("inf")
        """When a further commit becomes visible, whose writes were notified before."""
        finds_change = watch.Look.finds_change

        def look(real: watch.Look) -> bool:
            self.count += 1
            now = asyncio.get_running_loop().time()
            if now >= self.another_at:
                self.another_at = float("inf")
                return True
            return now >= self.blind_until and finds_change(real)

        monkeypatch.setattr(watch.Look, "finds_change", look)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


@pytest.fixture
def no_notifications(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without notifications."""
    monkeypatch.setattr(watch, "_inotify", lambda _: -1)


@pytest.fixture
def notifications_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No regular looks: only notified writes are noticed."""
    monkeypatch.setattr(watch, "NOW_AND_THEN", 1e6)


@pytest.mark.parametrize("pause", [2 * REST, 0.1, 0.26, 0.4, 0.9, 1.3, 10.0])
def test_commit_is_noticed_at_once(path: str, writer: sqlite3.Connection, pause: float) -> None:
    """However long nothing was written: a waiting worker is notified at once."""

    async def scenario(watcher: Watcher) -> None:
        for n in range(1, 4):
            change(writer)
            committed = await passing(MOMENT)
            assert len(watcher.heard) == n
            assert watcher.heard[-1] - committed < MOMENT
            await asyncio.sleep(pause)

    watch_file(path, scenario)


def test_constant_writes_are_reported_at_intervals(path: str, writer: sqlite3.Connection) -> None:
    """Each notification causes a claim: soon there is a pause between two of them, and none is forgotten."""

    async def scenario(watcher: Watcher) -> None:
        for _ in range(500):
            change(writer)
            last = await passing(0.001)
        await asyncio.sleep(REST + MOMENT)
        assert watcher.heard[-1] >= last
        pauses = [later - sooner for sooner, later in itertools.pairwise(watcher.heard)]
        assert min(pauses[5:]) > REST - 1e-6
        assert max(pauses) < REST + MOMENT

    watch_file(path, scenario)


@pytest.mark.parametrize("pause", [0.05, 1.0])
def test_job_that_follows_another_is_noticed_at_once(path: str, writer: sqlite3.Connection, pause: float) -> None:
    """A job, its claim and its end are three changes: they do not delay the notification of the next job."""

    async def scenario(watcher: Watcher) -> None:
        for _ in range(10):
            for _ in ("enqueued", "claimed", "done"):
                change(writer)
                await asyncio.sleep(0.003)
            await asyncio.sleep(0.005)
            change(writer)
            enqueued = await passing(MOMENT)
            assert watcher.heard[-1] >= enqueued
            await asyncio.sleep(pause)

    watch_file(path, scenario)


@pytest.mark.usefixtures("notifications_only")
@pytest.mark.parametrize("seconds", [0.003, 0.02, 0.2, 2.0])
def test_slow_commit_is_noticed(path: str, writer: sqlite3.Connection, looks: Looks, seconds: float) -> None:
    """The write is notified before its commit, the commit is not: looks follow, at growing intervals."""

    async def scenario(watcher: Watcher) -> None:
        looks.blind_until = asyncio.get_running_loop().time() + seconds
        change(writer)
        began = await passing(2 * seconds + MOMENT)
        (heard,) = watcher.heard
        assert seconds <= heard - began <= 2 * seconds + MOMENT

    watch_file(path, scenario)


@pytest.mark.usefixtures("notifications_only")
def test_commit_is_not_lost_behind_another(path: str, writer: sqlite3.Connection, looks: Looks) -> None:
    """Two writes are notified together, one commit is found at once: the other is still looked for."""

    async def scenario(watcher: Watcher) -> None:
        looks.another_at = asyncio.get_running_loop().time() + 2 * REST
        change(writer)
        await asyncio.sleep(MOMENT)
        assert len(watcher.heard) == 1
        await asyncio.sleep(4 * REST)
        assert len(watcher.heard) == 2

    watch_file(path, scenario)


def test_writes_before_a_commit_are_not_followed_step_by_step(
    path: str, writer: sqlite3.Connection, looks: Looks
) -> None:
    """A long transaction writes a lot: the watcher looks once a millisecond, and reports nothing before its end."""

    async def scenario(watcher: Watcher) -> None:
        before = looks.count
        for _ in range(100):
            write(writer)
            await asyncio.sleep(0.0001)
        assert looks.count - before <= 15
        assert watcher.heard == []
        writer.commit()
        await asyncio.sleep(MOMENT)
        assert len(watcher.heard) == 1

    watch_file(path, scenario)


def test_idle_watcher_rarely_looks(path: str, writer: sqlite3.Connection, looks: Looks) -> None:
    """Without writes it makes four looks a second, also after a write that was rolled back."""

    async def scenario(watcher: Watcher) -> None:
        write(writer)
        writer.rollback()
        await asyncio.sleep(1)
        before = looks.count
        await asyncio.sleep(60)
        assert looks.count - before <= 60 / watch.NOW_AND_THEN + 1
        assert watcher.heard == []

    watch_file(path, scenario)


def test_write_without_notification_is_found(
    path: str, writer: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On some file systems not every write is notified: a regular look finds them."""
    silent, inotify = tmp_path / "silent", watch._inotify
    silent.touch()
    monkeypatch.setattr(watch, "_inotify", lambda _: inotify(str(silent)))

    async def scenario(watcher: Watcher) -> None:
        change(writer)
        await asyncio.sleep(watch.NOW_AND_THEN)
        assert len(watcher.heard) == 1

    watch_file(path, scenario)


@pytest.mark.usefixtures("no_notifications")
def test_without_notifications_the_watcher_looks(path: str, writer: sqlite3.Connection, looks: Looks) -> None:
    """A commit is noticed at the next look; without a change nothing is reported."""

    async def scenario(watcher: Watcher) -> None:
        for n in range(1, 4):
            change(writer)
            await asyncio.sleep(INTERVAL)
            assert len(watcher.heard) == n
            before = looks.count
            await asyncio.sleep(1)
            assert looks.count - before == pytest.approx(1 / INTERVAL, abs=1)
            assert len(watcher.heard) == n

    watch_file(path, scenario)


def test_system_that_refuses_notifications(path: str) -> None:
    """There is no log to watch, or there are too many watchers: the file is looked at instead."""
    with watch._writes_to_log_of(path) as log:
        assert log is None


@pytest.mark.usefixtures("notifications_only")
def test_file_by_another_name(path: str, writer: sqlite3.Connection, tmp_path: Path) -> None:
    """SQLite keeps the log beside the file itself, not beside a link to it."""
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)

    async def scenario(watcher: Watcher) -> None:
        change(writer)
        await asyncio.sleep(MOMENT)
        assert len(watcher.heard) == 1

    watch_file(str(link), scenario)


async def test_listening_misses_nothing_from_its_first_moment(path: str) -> None:
    """What is written before the first look, but after `listen` has begun, is noticed."""
    woken, store = asyncio.Event(), SqliteStore(path)
    await store.open()
    async with store.listen(lambda _: woken.set()) as has_signals:
        assert has_signals
        with closing(sqlite3.connect(path)) as other:
            other.execute("create table written (x)")
        await asyncio.wait_for(woken.wait(), 10)
    await store.close()


async def test_listening_can_be_switched_off(path: str) -> None:
    """In virtual time no file is watched: no other process writes it, and this one wakes itself, as signals would."""
    for store in (SqliteStore(path, options=SqliteOptions(watch=None)), SqliteStore(":memory:", inline=True)):
        async with store.listen(lambda _: None) as has_signals:
            assert has_signals
