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

`Sender` chooses the transaction of a write:

    a connection is given ──► the user's open transaction on it: applied by the user's commit
    a block is open ────────► the task's own transaction: applied when the block ends
    neither ────────────────► a statement of its own, by the client, then a signal to the workers
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from reltask.errors import UsageError
from reltask.producer.portal import LentStore, Operation, Portal
from reltask.producer.transaction import TaskTransaction, current, run_here
from reltask.stores.store import Borrowed, Store, Transaction

T = TypeVar("T")
Place = Store | Transaction | TaskTransaction
"""Where something is written or read: in a statement of its own, or in an open transaction."""
Joined = Callable[[Transaction | TaskTransaction], Coroutine[Any, Any, T]]
"""What to write inside an open transaction."""


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
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise no_loop(name) from None
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
        last, task = lent[-1], asyncio.current_task()
        last.calls.tasks.add(task)
        try:
            return await operation(last.store)
        finally:
            last.calls.tasks.discard(task)
            last.calls.one_ended.set()

    async def _on_this_loop(self, operation: Operation[T]) -> T:
        store = self._make_store()
        await store.open()
        try:
            return await operation(store)
        finally:
            await store.close()

    async def _through_portal(self, operation: Operation[T]) -> T:
        return await asyncio.wrap_future(self.private(operation))


class Sender:
    """Sends the writes of one app."""

    def __init__(self, client: Client, *, borrow: Callable[[object], Borrowed]) -> None:
        self.client = client
        self.wakes: set[Callable[[Collection[UUID]], None]] = set()
        """Callbacks that wake this process's own workers, without a signal from the database: see `Worker.wake`."""
        self.stops: set[Callable[[Collection[UUID]], None]] = set()
        """Callbacks that let them look at jobs which were cancelled."""
        self._borrow = borrow
        self.ignores_connections = False
        """In the test kit, whose database is another one: jobs are inserted at once."""

    def send(self, joined: Joined[T], alone: Operation[T], connection: object, *, name: str) -> Coroutine[Any, Any, T]:
        """Write in the user's transaction on `connection`, in the task's open block, or alone."""
        if connection is not None and not self.ignores_connections:
            return _join(self._borrowed(connection, name, is_async=True), joined)
        block = current.get()
        if block is not None and block.open:
            return joined(block)
        return self.client.run(alone, name=name)

    def send_sync(self, joined: Joined[T], alone: Operation[T], connection: object, *, name: str) -> T:
        """`send` for synchronous code.

        With `connection` also on a running loop: it blocks that anyway.
        """
        if connection is not None and not self.ignores_connections:
            return run_here(_join(self._borrowed(connection, name, is_async=False), joined))
        block = current.get()
        if block is not None and block.open:
            refuse_running_loop(name)
            return block.wait_for(joined(block))
        return self.client.run_sync(alone, name=name)

    async def signal(self, store: Store, job_ids: Collection[UUID] = ()) -> None:
        """Wake the workers of this process and of others: for these jobs, or any if none is named."""
        self.wake(job_ids)
        await store.signal()

    def wake(self, job_ids: Collection[UUID] = ()) -> None:
        """Wake the workers of this process."""
        for wake in list(self.wakes):
            wake(job_ids)

    def stop(self, job_ids: Collection[UUID]) -> None:
        """Jobs are cancelled: let the workers of this process stop those that they run, and claim the others."""
        for stop in list(self.stops):
            stop(job_ids)
        self.wake()

    def _borrowed(self, connection: object, name: str, *, is_async: bool) -> Borrowed:
        block = current.get()
        if block is not None and block.open:
            raise UsageError(
                f"{name}() joins the open block by itself, and can join no other.", remedy="Leave out connection=."
            )
        borrowed = self._borrow(connection)
        if borrowed.is_async and not is_async:
            raise UsageError(
                f"{name}_sync() cannot wait for an asynchronous connection.", remedy=f"Write: await {name}()."
            )
        if is_async and not borrowed.is_async:
            raise UsageError(
                f"{name}() takes asynchronous connections.", remedy=f"With a synchronous one call {name}_sync()."
            )
        return borrowed


async def _join(borrowed: Borrowed, joined: Joined[T]) -> T:
    """Write in the user's open transaction. No signal: nothing exists before the user's commit."""
    return await joined(await borrowed.join())


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
        raise no_loop(name) from None


def no_loop(name: str) -> UsageError:
    """The error of a coroutine that no loop could run."""
    return UsageError(f"{name}() needs a running event loop.", remedy=f"In synchronous code call {name}_sync().")


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
