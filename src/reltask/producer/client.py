"""How producers reach the database: from any loop, any thread, any process.

    async code on any loop ──► await client.run(op) ──┐                         ┌──────────────────────────┐
    sync code in any thread ─► client.run_sync(op) ───┼─► portal: one thread ──►│ a private loop, a store  │──► database
    a loop with a store ─────► client.run(op) ────────┼────────────┐            └──────────────────────────┘
                                                      │            └──────────► that store, directly
    a forked child ─► notices the new process id, and opens a portal of its own

A database connection belongs to one event loop, but a producer's loop may be short-lived: a script
that calls `asyncio.run` twice, a web server's threads, a test that makes a loop per case. So client
connections live on one private loop per process, and no caller's loop has to outlive a call. A loop
that lives longer can have a store of its own, which saves the hop to another thread and back: a
worker's loop has one, and a web server's gets one by `app.producer()`.

On SQLite a call blocks the private loop: it saves a second hop, and the calls would wait for each
other anyway. Leases have a `Client` of their own, on a thread "reltask-leases": no call delays their
heartbeats.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from reltask.errors import AmbiguousError, UsageError
from reltask.producer.transaction import current
from reltask.stores.store import Store

T = TypeVar("T")
Operation = Callable[[Store], Awaitable[T]]
PATIENCE = 10.0
"""Seconds that closing waits for the calls that still use the connections."""


class CallsUnderWay:
    """The tasks of the calls that are under way."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any] | None] = set()
        self._none_left = asyncio.Event()

    def begin(self) -> None:
        """The running task makes a call."""
        self.tasks.add(asyncio.current_task())
        self._none_left.clear()

    def end(self) -> None:
        """The running task's call has ended."""
        self.tasks.discard(asyncio.current_task())
        if not self.tasks:
            self._none_left.set()

    async def ended(self) -> None:
        """Wait until none is left, for PATIENCE seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while self.tasks:
                    await self._none_left.wait()


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
        self._thread = threading.Thread(target=self._loop.run_forever, name=thread, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[Portal], Awaitable[T]]) -> Future[T] | None:
        """Run `work` on the private loop; None: the portal is being closed, and accepts no more."""
        with self._lock:
            return None if self._closing else asyncio.run_coroutine_threadsafe(self._run(work), self._loop)

    async def ask(self, operation: Operation[T]) -> T:
        """Run an operation, on the private loop."""
        return await operation(await self._open())

    async def _run(self, work: Callable[[Portal], Awaitable[T]]) -> T:
        self._calls.begin()
        try:
            return await work(self)
        except asyncio.CancelledError:
            if not self._closing:
                raise
            # The caller is not cancelled, and would mistake a CancelledError for its own cancellation.
            raise AmbiguousError("The app was closed before the call ended; it may or may not be applied.") from None
        finally:
            self._calls.end()

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


class Client:
    """Runs operations on the store that fits the caller's loop, thread and process."""

    def __init__(
        self,
        make_store: Callable[[], Store],
        make_long_store: Callable[[timedelta], Store] | None = None,
        *,
        inline: bool = False,
        thread: str = "reltask-client",
    ) -> None:
        """`make_long_store` makes a store that does not block its loop, with this time limit for statements."""
        self._make_store = make_store
        self._make_long_store = make_long_store or (lambda _timeout: make_store())
        self._thread_name = thread
        self._inline = inline
        """No portal: every call runs on its caller's loop, as tests with virtual time need it."""
        self._lock = threading.Lock()
        self._portal: Portal | None = None
        self._inherited: list[Portal] = []
        self._lent: dict[asyncio.AbstractEventLoop, list[LentStore]] = defaultdict(list)
        self.leave: Callable[[], Awaitable[None]] = _no_leave
        """Called on the private loop before it ends: gives back the leases that live on it."""

    def run(self, operation: Operation[T], *, name: str) -> Coroutine[Any, Any, T]:
        """The operation as a coroutine for the running loop; without a loop, an error at once."""
        refuse_no_loop(name)
        if current.get() is not None:
            refuse_open_transaction(name)
        return self._run(operation)

    def run_sync(self, operation: Operation[T], *, name: str) -> T:
        """Run the operation and wait for it; refused on a running loop, which it would block."""
        refuse_running_loop(name)
        refuse_open_transaction(f"{name}_sync")
        return self.private(operation).result()

    def run_private(self, operation: Operation[T], *, name: str) -> Coroutine[Any, Any, T]:
        """As `run`, but always on the private loop: for work that continues while the caller's loop blocks."""
        refuse_open_transaction(name)
        return self.run(operation, name=name) if self._inline else self._through_portal(operation)

    def private(self, operation: Operation[T]) -> Future[T]:
        """Run the operation on the private loop; the caller waits for the future."""
        return self._submit(lambda portal: portal.ask(operation))

    def start(self, operation: Operation[None]) -> Future[None] | asyncio.Task[None]:
        """Begin an operation that goes on beside its caller: on the private loop, or inline on the caller's."""
        if self._inline and _loop_runs():
            return asyncio.ensure_future(self._run(operation))
        return self.private(operation)

    def privately(self, work: Callable[[], Awaitable[T]]) -> Future[T]:
        """Run `work` on the private loop.

        It needs no store, so it does not wait for the database.
        """
        return self._submit(lambda _: work())

    def run_long(self, operation: Operation[T], *, timeout: timedelta, name: str) -> Coroutine[Any, Any, T]:
        """Run an operation whose statements may take `timeout`, on a store of its own: it delays no other call."""
        if self._inline:
            return self.run(operation, name=name)
        refuse_no_loop(name)
        refuse_open_transaction(name)
        return self._await_privately(lambda: self._ask_long(operation, timeout))

    def run_long_sync(self, operation: Operation[T], *, timeout: timedelta, name: str) -> T:
        """`run_long`, waited for."""
        refuse_running_loop(name)
        refuse_open_transaction(f"{name}_sync")
        return self.privately(lambda: self._ask_long(operation, timeout)).result()

    async def _await_privately(self, work: Callable[[], Awaitable[T]]) -> T:
        return await asyncio.wrap_future(self.privately(work))

    async def _ask_long(self, operation: Operation[T], timeout: timedelta) -> T:
        store = self._make_long_store(timeout)
        try:
            await store.open()
            return await operation(store)
        finally:
            await store.close()

    def run_apart(self, operation: Operation[T], *, name: str) -> Coroutine[Any, Any, T]:
        """Run the operation on a new store that is not opened: for a database in any state."""
        refuse_open_transaction(name)
        return asyncio.to_thread(self._apart, operation)

    def run_apart_sync(self, operation: Operation[T], *, name: str) -> T:
        """`run_apart`, waited for."""
        refuse_running_loop(name)
        return self._apart(operation)

    def _apart(self, operation: Operation[T]) -> T:
        async def ask() -> T:
            store = self._make_store()
            try:
                return await operation(store)
            finally:
                await store.close()

        return asyncio.run(ask())

    def lend(self, store: Store) -> LentStore:
        """Use this open store for calls from the running loop."""
        lent = LentStore(store)
        self._lent[asyncio.get_running_loop()].append(lent)
        return lent

    def take_back(self, lent: LentStore) -> None:
        """The store is about to be closed.

        Further calls use the one lent before it, or the portal.
        """
        loop = asyncio.get_running_loop()
        self._lent[loop].remove(lent)
        if not self._lent[loop]:
            del self._lent[loop]

    def close(self) -> None:
        """Close what this process has opened; the next call opens it again."""
        with self._lock:
            portal, self._portal = self._portal, None
        if portal is not None and portal.pid == os.getpid():
            portal.close()

    def _connected(self) -> Portal:
        with self._lock:
            if self._portal is not None and self._portal.pid != os.getpid():
                # A forked child must neither use nor close its parent's connections: only keep them.
                self._inherited.append(self._portal)
                self._portal = None
            if self._portal is None:
                self._portal = Portal(self._make_store, self.leave, thread=self._thread_name)
            return self._portal

    def _submit(self, work: Callable[[Portal], Awaitable[T]]) -> Future[T]:
        while (future := self._connected().submit(work)) is None:
            pass  # another thread closes this portal: get or make the next one
        return future

    async def _run(self, operation: Operation[T]) -> T:
        """Choose the store when the coroutine runs: one may have been closed since it was created."""
        lent = self._lent.get(asyncio.get_running_loop())
        if not lent:
            return await (self._on_this_loop(operation) if self._inline else self._through_portal(operation))
        last = lent[-1]
        last.calls.begin()
        try:
            return await operation(last.store)
        finally:
            last.calls.end()

    async def _on_this_loop(self, operation: Operation[T]) -> T:
        store = self._make_store()
        await store.open()
        try:
            return await operation(store)
        finally:
            await store.close()

    async def _through_portal(self, operation: Operation[T]) -> T:
        return await asyncio.wrap_future(self.private(operation))


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _no_leave() -> None:
    """The default: there is nothing to give back."""


def refuse_no_loop(name: str) -> None:
    """UsageError if no loop runs in this thread to await the coroutine."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            f"{name}() needs a running event loop.", remedy=f"In synchronous code call {name}_sync()."
        ) from None


def refuse_running_loop(name: str, *, instead: str | None = None) -> None:
    """UsageError if a loop runs in this thread, which the blocking call would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        f"{name}_sync() would block the running event loop.",
        remedy=f"In asynchronous code write: {instead or f'await {name}()'}.",
    )


def refuse_open_transaction(name: str) -> None:
    """UsageError inside an open transaction: a call on another connection would wait for it."""
    block = current.get()
    if block is not None and block.open:
        raise UsageError(
            f"{name}() inside an open transaction would wait for it.", remedy="Call it before or after the block."
        )


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, where that extra is installed; Python's otherwise."""
    try:
        import uvloop  # noqa: PLC0415 - an extra
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
