"""Noticing that somebody else wrote to the file.

SQLite sends no signals, but `pragma data_version` changes whenever another connection commits, and asking costs no
more than a look into shared memory. The watching connection writes nothing and holds no lock between two looks.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress

from reltask.stores.sqlite.errors import classify


@asynccontextmanager
async def watching(
    path: str, changed: Callable[[], None], *, interval: float, sleep: Callable[[float], Awaitable[None]]
) -> AsyncIterator[bool]:
    """Call `changed` soon after any other connection has changed the file, from now on."""
    with closing(_connect(path)) as connection:
        looks = _watch(connection, _version(connection), changed, interval, sleep)
        task = asyncio.create_task(looks, name="reltask: watch the file")
        try:
            yield True
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _watch(
    connection: sqlite3.Connection,
    version: int | None,
    changed: Callable[[], None],
    interval: float,
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    while True:
        await sleep(interval)
        seen = _version(connection)
        if seen not in (version, None):
            changed()
            version = seen


def _connect(path: str) -> sqlite3.Connection:
    try:
        return sqlite3.connect(path, timeout=0, isolation_level=None)
    except sqlite3.Error as error:
        raise classify(error, path) from error


def _version(connection: sqlite3.Connection) -> int | None:
    # A refused look (the file is busy, the disk hiccups) is no reason to stop watching: the next one will tell.
    try:
        return int(connection.execute("pragma data_version").fetchone()[0])
    except sqlite3.Error:
        return None
