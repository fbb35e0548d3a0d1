"""The `Lease` of `async with app.lease(…) as lease`; it may be used from any thread and any loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from reltask.errors import LeaseLost, UsageError
from reltask.leases.leader import Leader
from reltask.leases.metadata import Metadata
from reltask.model.lease import Term
from reltask.producer.transaction import SyncTransaction, TaskTransaction, run_here
from reltask.stores.store import Borrowed

Borrow = Callable[[object], Borrowed]
"""Wraps a user's connection: see `Store.borrow`."""


class LossEvent:
    """Whether and why a lease was lost: `await lease.lost`, or `lease.lost.wait(…)` in synchronous code."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._waiters: list[Callable[[], None]] = []
        self.reason: str | None = None
        """None: it is not lost."""

    def is_set(self) -> bool:
        """Whether the loss was announced."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> str | None:
        """Block until the lease is lost, at most `timeout` seconds; return the reason, or None."""
        self._event.wait(timeout)
        return self.reason

    def __await__(self) -> Generator[Any, None, str]:
        return self._wait().__await__()

    async def _wait(self) -> str:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop may have been closed
                loop.call_soon_threadsafe(woken.set)

        with self._lock:
            if self.reason is not None:
                return self.reason
            self._waiters.append(wake)
        try:
            await woken.wait()
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._waiters.remove(wake)
        return str(self.reason)

    def announce(self, reason: str) -> None:
        """Set the reason and wake all waiters. Only the first call has an effect."""
        with self._lock:
            if self.reason is not None:
                return
            self.reason = reason
            self._event.set()
            waiters = list(self._waiters)
        for wake in waiters:
            wake()


class Lease:
    """A lease that this process holds, or has held."""

    def __init__(self, term: Term, *, holder: str, leader: Leader, lost: LossEvent, borrow: Borrow) -> None:
        self.name: str = term.lease
        self.term: int = term.number
        """Grows with every acquisition: send it to other systems, so that they can refuse an older one."""
        self.holder: str = holder
        self.lost: LossEvent = lost
        """`await lease.lost` returns the reason; `.is_set()` and `.wait(timeout)` for synchronous code."""
        self._term = term
        self._leader = leader
        self._borrow = borrow
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<lease {self.name}, term {self.term}{'' if self.held else ', not held'}>"

    @property
    def held(self) -> bool:
        """Whether this process can be sure to hold the lease now; computed without a query."""
        return self._pid == os.getpid() and self._leader.term == self._term

    @property
    def metadata(self) -> Metadata:
        """JSON values shown by `reltask leases`; they are sent with the next heartbeat."""
        return self._leader.metadata

    def worked(self, *, items: int = 0, errors: int = 0) -> None:
        """Report finished work: `max_stall` counts from now; `last_run`, `items` and `errors` are published."""
        self._leader.worked(items=items, errors=errors)

    def guard(self, connection: Any) -> Coroutine[Any, Any, None]:
        """Fence your open transaction: until it ends no other process can acquire the lease.

        Raises `LeaseLost` if another one already has. `connection` is your own asynchronous connection or session with
        an open transaction, or a task's `tx`.
        """
        self._refuse_announced()
        if isinstance(connection, TaskTransaction):
            return self._checked(connection.guard_lease(self._term))
        return self._join(self._borrowed(connection, is_async=True))

    def guard_sync(self, connection: Any) -> None:
        """`guard` for synchronous connections, and for the `tx` of a `def` task."""
        self._refuse_announced()
        if isinstance(connection, SyncTransaction):
            return self._check(guarded=connection.guard_lease(self._term))
        return run_here(self._join(self._borrowed(connection, is_async=False)))

    def _borrowed(self, connection: object, *, is_async: bool) -> Borrowed:
        borrowed = self._borrow(connection)
        if borrowed.is_async != is_async:
            call = "await lease.guard(…)" if borrowed.is_async else "lease.guard_sync(…)"
            kind = "asynchronous" if borrowed.is_async else "synchronous"
            raise UsageError(f"This connection is {kind} and needs the other form of guard.", remedy=f"Write: {call}.")
        return borrowed

    async def _join(self, borrowed: Borrowed) -> None:
        await self._checked((await borrowed.join()).guard_lease(self._term))

    async def _checked(self, guarding: Coroutine[Any, Any, bool]) -> None:
        self._check(guarded=await guarding)

    def _check(self, *, guarded: bool) -> None:
        if not guarded:
            raise self._over("the database refused it")

    def _refuse_announced(self) -> None:
        if self._pid != os.getpid():
            raise UsageError(
                f"Lease {self.name} belongs to the process that acquired it.", remedy="Acquire it in this process."
            )
        if self.lost.reason is not None:
            raise self._over(self.lost.reason)

    def _over(self, why: str) -> LeaseLost:
        return LeaseLost(
            f"Term {self.term} of lease {self.name} is over: {why}.",
            remedy="Roll back and stop: another process may hold the lease.",
        )
