"""Noticing that somebody else wrote to the file.

SQLite sends no signals, but `pragma data_version` changes whenever another connection commits, and asking costs no
more than a look into shared memory. When to look is what Linux tells: it reports each write to the file's log. The
commit follows a moment later, and is not reported.

    told of a write ──► look ──► and after 1, 2, 4 … ms without news again ──► in the end 4 times a second
          ▲                │
          └─ as soon as    └─ changed: say so, rest, and go on looking: another commit may be to come,
             told again       told of by the same writes

So an idle worker sleeps, and yet hears of a job within milliseconds. Whoever writes all the time is heard of a hundred
times a second: the first rest takes a millisecond, each further one twice as long, until it has been quiet for a while.
Elsewhere there is a look every `interval`. The watching connection writes nothing and holds no lock between two looks.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress

from reltask.stores.sqlite.errors import classify

CLOSELY, NOW_AND_THEN = 0.001, 0.25
"""Seconds until a look although no write was told of: right after one, and in the end."""
REST = 0.01
"""Seconds between two changes that are told, at the least, while somebody writes all the time."""
_MODIFIED = 0x2
"""What Linux calls IN_MODIFY."""

Changed = Callable[[], None]
Sleep = Callable[[float], Awaitable[None]]


@asynccontextmanager
async def watching(path: str, changed: Changed, *, interval: float, sleep: Sleep) -> AsyncIterator[bool]:
    """Call `changed` soon after any other connection has changed the file, from now on."""
    with closing(Look(path)) as look, _writes_to_log_of(path) as log:
        look.finds_change()  # what was not told of is old by now
        if log is None:
            looks = _look_often(look, changed, interval, sleep)
        else:
            looks = _look_when_told(look, log, changed, sleep)
        task = asyncio.create_task(looks, name="reltask: watch the file")
        try:
            yield True
        finally:
            task.cancel()
            await asyncio.wait({task})


async def _look_often(look: Look, changed: Changed, interval: float, sleep: Sleep) -> None:
    while True:
        await sleep(interval)
        if look.finds_change():
            changed()


async def _look_when_told(look: Look, log: Notices, changed: Changed, sleep: Sleep) -> None:
    patience = rest = CLOSELY
    while True:
        told = await log.written(patience)
        patience = CLOSELY if told else min(2 * patience, NOW_AND_THEN)
        if patience > REST:  # quiet for about as long
            rest = CLOSELY
        if look.finds_change():
            changed()
            await sleep(rest)
            rest = min(2 * rest, REST)
        elif told:
            await sleep(CLOSELY)  # whoever writes much before a commit is not followed step by step


class Look:
    """Whether anybody else has committed since the last look, by a connection of its own."""

    def __init__(self, path: str) -> None:
        try:
            self._connection = sqlite3.connect(path, timeout=0, isolation_level=None)
        except sqlite3.Error as error:
            raise classify(error, path) from error
        self._seen = 0
        self.finds_change()  # whoever has looked once keeps the log open: nobody removes it

    def finds_change(self) -> bool:
        # A refused look (the file is busy, the disk hiccups) is no reason to stop watching: the next one will tell.
        with suppress(sqlite3.Error):
            last, self._seen = self._seen, int(self._connection.execute("pragma data_version").fetchone()[0])
            return last != self._seen
        return False

    def close(self) -> None:
        self._connection.close()


class Notices:
    """What Linux tells of writes to a file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def written(self, patience: float) -> bool:
        """Whether somebody has written since the last time, or does within so many seconds."""
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._descriptor, told.set)
        try:
            async with asyncio.timeout(patience):
                await told.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._descriptor)
        with suppress(BlockingIOError):
            os.read(self._descriptor, 1 << 16)
        return True


@contextmanager
def _writes_to_log_of(path: str) -> Iterator[Notices | None]:
    """Notices of writes to this file's log, which lies beside the file itself; None where the system gives none."""
    descriptor = _inotify(f"{os.path.realpath(path)}-wal") if sys.platform == "linux" else -1
    try:
        yield None if descriptor < 0 else Notices(descriptor)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _inotify(path: str) -> int:
    """A descriptor that can be read when somebody has written to this file; -1: there is no file, or none to spare."""
    import ctypes  # noqa: PLC0415 - nobody else needs it, and it takes its time

    libc = ctypes.CDLL(None)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor >= 0 and libc.inotify_add_watch(descriptor, os.fsencode(path), _MODIFIED) < 0:
        os.close(descriptor)
        return -1
    return descriptor
