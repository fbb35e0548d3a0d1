"""A private event loop with an open store, for the calls of producers whose own loop has none.

`client.py` decides which calls come here. A loop and its connections are closed only after the calls
that use them have ended.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from reltask.errors import AmbiguousError
from reltask.stores.store import Store

T = TypeVar("T")
Operation = Callable[[Store], Awaitable[T]]
PATIENCE = 10.0
"""Seconds that closing waits for the calls that still use the connections."""


class CallsUnderWay:
    """The tasks of the calls that are under way."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any] | None] = set()
        """A call adds its task, and removes it at its end."""
        self.one_ended = asyncio.Event()

    async def ended(self) -> None:
        """Wait until none is left, for PATIENCE seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while self.tasks:
                    self.one_ended.clear()
                    await self.one_ended.wait()


class LentStore:
    """An open store for the calls from its own loop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls = CallsUnderWay()

    async def ended(self) -> None:
        """Wait until no call uses it, for PATIENCE seconds at most."""
        await self.calls.ended()


class Portal:
    """A private event loop with an open store, on a thread of its own."""

    def __init__(self, make_store: Callable[[], Store], leave: Callable[[], Awaitable[None]], *, thread: str) -> None:
        self.pid = os.getpid()
        self._make_store = make_store
        self._leave = leave
        self._store: Store | None = None
        self._opening: asyncio.Lock | None = None
        self._calls = CallsUnderWay()
        self._lock = threading.Lock()
        self._closing = False
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name=thread, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[Portal], Awaitable[T]]) -> Future[T] | None:
        """Run `work` on the private loop; None: the portal is being closed, and accepts no more."""
        with self._lock:
            return None if self._closing else asyncio.run_coroutine_threadsafe(self._run(work), self._loop)

    def _run_loop(self) -> None:
        """The thread keeps the portal and its connections alive while the loop runs.

        Else those of an app that was dropped without `close()` would be collected under the running
        loop, on any thread: uvloop does not survive that.
        """
        self._loop.run_forever()

    async def ask(self, operation: Operation[T]) -> T:
        """Run an operation, on the private loop."""
        return await operation(await self._open())

    async def _run(self, work: Callable[[Portal], Awaitable[T]]) -> T:
        task = asyncio.current_task()
        self._calls.tasks.add(task)
        try:
            return await work(self)
        except asyncio.CancelledError:
            if not self._closing:
                raise
            # The caller is not cancelled, and would mistake a CancelledError for its own cancellation.
            raise AmbiguousError("The app was closed before the call ended; it may or may not be applied.") from None
        finally:
            self._calls.tasks.discard(task)
            self._calls.one_ended.set()

    async def _open(self) -> Store:
        """The store, opened by the first call; after a failed attempt the next call tries again."""
        if self._store is not None:
            return self._store
        self._opening = self._opening or asyncio.Lock()
        async with self._opening:
            if self._store is None:
                store = self._make_store()
                try:
                    await store.open()
                except BaseException:
                    await store.close()
                    raise
                self._store = store
        return self._store

    def close(self) -> None:
        """Close the connections and end the thread, after the calls that other threads still wait for."""
        with self._lock:
            self._closing = True
        try:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _close(self) -> None:
        await self._calls.ended()
        late = [call for call in self._calls.tasks if call is not None]
        for call in late:
            call.cancel()  # without its loop the call would never end, and its caller would wait for ever
        await asyncio.gather(*late, return_exceptions=True)
        await self._leave()
        if self._store is not None:
            await self._store.close()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, where that extra is installed; Python's otherwise."""
    try:
        import uvloop  # noqa: PLC0415 - an extra
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
