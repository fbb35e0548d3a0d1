"""Noticing that somebody else wrote to the file.

SQLite sends no signals, but `pragma data_version` changes whenever another connection commits, and asking costs no
more than a look into shared memory. When to look is what Linux tells: it reports each write to the file's log, a moment
before its commit.

    somebody writes ──► look, and again after 1, 2, 4 … ms ──► changed ──► rest for `interval`,
    to the log          until the commit is there                          however much is written

So an idle worker sleeps, and yet hears of a job within milliseconds. Elsewhere there is only the rest: a look every
`interval`. The watching connection writes nothing and holds no lock between two looks.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress

from reltask.stores.sqlite.errors import classify

NAPS = [0.001 * 2**n for n in range(10)]
"""Seconds between the looks for a commit whose first write was seen: about one in all."""
NET = 1.0
"""Seconds after which there is a look although no write was reported."""
_MODIFIED = 0x2
"""What Linux calls IN_MODIFY."""

Sleep = Callable[[float], Awaitable[None]]


@asynccontextmanager
async def watching(path: str, changed: Callable[[], None], *, interval: float, sleep: Sleep) -> AsyncIterator[bool]:
    """Call `changed` soon after any other connection has changed the file, from now on."""
    with closing(_connect(path)) as connection:
        look = Look(connection)  # whoever has asked once keeps the log open: nobody removes it
        with closing(Log(f"{path}-wal")) as log:
            look.finds_change()  # what the log cannot have told of is old by now
            task = asyncio.create_task(_watch(look, log, changed, interval, sleep), name="reltask: watch the file")
            try:
                yield True
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def _watch(look: Look, log: Log, changed: Callable[[], None], interval: float, sleep: Sleep) -> None:
    while True:
        await sleep(interval)
        await log.written()
        for nap in (0.0, *log.naps):
            if nap > 0:
                await sleep(nap)
            if look.finds_change():
                changed()
                break


class Look:
    """Whether anybody else has committed since the last look."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._seen = 0
        self.finds_change()

    def finds_change(self) -> bool:
        # A refused look (the file is busy, the disk hiccups) is no reason to stop watching: the next one will tell.
        with suppress(sqlite3.Error):
            last, self._seen = self._seen, int(self._connection.execute("pragma data_version").fetchone()[0])
            return last != self._seen
        return False


class Log:
    """A file's write-ahead log, and what the system tells of it."""

    def __init__(self, path: str) -> None:
        self._notices = _open_notices(path) if sys.platform == "linux" else None

    @property
    def naps(self) -> list[float]:
        """After which seconds to look once more for what was written, and may not be committed yet."""
        return [] if self._notices is None else NAPS

    async def written(self) -> None:
        """Somebody has written since the last time, or writes now; at once where the system does not tell."""
        if self._notices is None:
            return
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._notices, told.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(NET):
                    await told.wait()
        finally:
            loop.remove_reader(self._notices)
        with suppress(BlockingIOError):
            os.read(self._notices, 1 << 16)

    def close(self) -> None:
        """Listen to the system no more."""
        if self._notices is not None:
            os.close(self._notices)


def _open_notices(path: str) -> int | None:
    """A descriptor that can be read when somebody writes to this file; None: the system has none to give."""
    import ctypes  # noqa: PLC0415 - nobody else needs it, and it takes its time

    libc = ctypes.CDLL(None)
    notices: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if notices < 0:
        return None
    if libc.inotify_add_watch(notices, os.fsencode(path), _MODIFIED) < 0:
        os.close(notices)
        return None
    return notices


def _connect(path: str) -> sqlite3.Connection:
    try:
        return sqlite3.connect(path, timeout=0, isolation_level=None)
    except sqlite3.Error as error:
        raise classify(error, path) from error
