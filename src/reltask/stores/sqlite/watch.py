"""Notices commits of other connections to the file.

SQLite sends no signals, but `pragma data_version` changes whenever another connection commits, and reading it costs no
more than an access to shared memory. On Linux, inotify reports each write to the write-ahead log, and so when to check.
The commit follows a moment after the write and is not reported.

    a write is reported ──► check ──► without a change, again after 1, 2, 4 … ms ──► finally 4 times a second
          ▲                   │
          └─ on the next      └─ changed: call back, rest, and check again, because another commit of the
             report              same writes may follow

So an idle worker sleeps, and still learns of a job within milliseconds. If another process writes all the time, the
callback is called up to a hundred times a second: the first rest takes a millisecond, each further one twice as long,
up to REST, until there are no writes for a while. On other systems there is a check every `interval`. The watching
connection writes nothing and holds no lock between two checks.
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
"""Seconds until a check without a reported write: right after a write, and at most."""
REST = 0.01
"""The least seconds between two callbacks while another process writes all the time."""
_MODIFIED = 0x2
"""Linux's IN_MODIFY."""

Changed = Callable[[], None]
Sleep = Callable[[float], Awaitable[None]]


@asynccontextmanager
async def watching(path: str, changed: Changed, *, interval: float, sleep: Sleep) -> AsyncIterator[bool]:
    """Call `changed` soon after any other connection has changed the file, from now on."""
    with closing(Look(path)) as look, _writes_to_log_of(path) as log:
        look.finds_change()  # forget the commits before this moment
        if log is None:
            watch = _check_regularly(look, changed, interval, sleep)
        else:
            watch = _check_after_writes(look, log, changed, sleep)
        task = asyncio.create_task(watch, name="reltask: watch the file")
        try:
            yield True
        finally:
            task.cancel()
            await asyncio.wait({task})


async def _check_regularly(look: Look, changed: Changed, interval: float, sleep: Sleep) -> None:
    while True:
        await sleep(interval)
        if look.finds_change():
            changed()


async def _check_after_writes(look: Look, log: WriteNotices, changed: Changed, sleep: Sleep) -> None:
    wait = rest = CLOSELY
    while True:
        written = await log.written(wait)
        wait = CLOSELY if written else min(2 * wait, NOW_AND_THEN)
        if wait > REST:  # no writes for about as long
            rest = CLOSELY
        if look.finds_change():
            changed()
            await sleep(rest)
            rest = min(2 * rest, REST)
        elif written:
            await sleep(CLOSELY)  # do not check after each of many writes before a commit


class Look:
    """Whether another connection has committed since the last check, by a connection of its own."""

    def __init__(self, path: str) -> None:
        try:
            self._connection = sqlite3.connect(path, timeout=0, isolation_level=None)
        except sqlite3.Error as error:
            raise classify(error, path) from error
        self._seen = 0
        self.finds_change()  # opens the log; while it is open, no other connection removes it

    def finds_change(self) -> bool:
        # A failed check (the file is busy, a disk error) does not end the watch: the next one may succeed.
        with suppress(sqlite3.Error):
            last, self._seen = self._seen, int(self._connection.execute("pragma data_version").fetchone()[0])
            return last != self._seen
        return False

    def close(self) -> None:
        self._connection.close()


class WriteNotices:
    """Linux's notifications of writes to a file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def written(self, timeout: float) -> bool:
        """Whether there was a write since the last call, or is one within `timeout` seconds."""
        loop, notified = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._descriptor, notified.set)
        try:
            async with asyncio.timeout(timeout):
                await notified.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._descriptor)
        with suppress(BlockingIOError):
            os.read(self._descriptor, 1 << 16)
        return True


@contextmanager
def _writes_to_log_of(path: str) -> Iterator[WriteNotices | None]:
    """Notifications of writes to this file's write-ahead log; None if the system has none."""
    descriptor = _inotify(f"{os.path.realpath(path)}-wal") if sys.platform == "linux" else -1
    try:
        yield None if descriptor < 0 else WriteNotices(descriptor)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _inotify(path: str) -> int:
    """A descriptor that becomes readable after a write to this file; -1 if that is not possible."""
    import ctypes  # noqa: PLC0415 - a slow import, needed only here

    libc = ctypes.CDLL(None)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor >= 0 and libc.inotify_add_watch(descriptor, os.fsencode(path), _MODIFIED) < 0:
        os.close(descriptor)
        return -1
    return descriptor
