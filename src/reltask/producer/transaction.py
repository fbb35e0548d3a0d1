"""A task's open transaction: its own statements, and the enqueues that join it.

While a block of `ctx.transaction()` is open, `open_transaction()` returns it. An enqueue inside the
block joins it. Any other call that needs a second connection is refused at once, because it would
wait for the block that it is in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

from reltask.errors import UsageError
from reltask.model.durable import NewSignal
from reltask.model.job import NewJob
from reltask.model.lease import Term
from reltask.model.shards import Here
from reltask.stores.store import Transaction

T = TypeVar("T")


class Home(Protocol):
    """Where a transaction's coroutines run, and how its body reaches the worker's loop."""

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one of the transaction's coroutines from synchronous code, and wait for it."""
        ...

    async def on_loop(self, work: Awaitable[T]) -> T:
        """Await a call of the worker's store."""
        ...


class OnLoop:
    """The transaction lives on the worker's loop, like the store."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        return wait_for(work, self._loop)

    async def on_loop(self, work: Awaitable[T]) -> T:
        return await work


class InThread:
    """The transaction lives in the body's thread, because the user's synchronous connection does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        return run_here(work)

    async def on_loop(self, work: Awaitable[T]) -> T:
        return wait_for(work, self._loop)


class TaskTransaction:
    """Handed to the body of `async with ctx.transaction() as tx`."""

    def __init__(self, inner: Transaction, home: Home, here: Here | None = None) -> None:
        self._inner = inner
        self._home = home
        self._here = here
        self.open = True
        self.enqueued = False
        """Whether it has written something that workers have to look at after the commit."""
        self.result: Any = None
        """Set it to store a result with the completion."""

    @property
    def connection(self) -> Any:
        """The driver's own connection, inside the open transaction; with `connection=`, the object given there."""
        return self._inner.connection

    async def execute(self, sql: str, /, *args: object, **named: object) -> None:
        """Run a statement: `await tx.execute("update rates set x = :x", x=1)`, or in the driver's own style."""
        await self._inner.execute(sql, *args, **named)

    async def fetch(self, sql: str, /, *args: object, **named: object) -> list[dict[str, Any]]:
        """Run a query and return its rows."""
        return await self._inner.fetch(sql, *args, **named)

    async def read_now(self) -> datetime:
        """The database's time."""
        return await self._inner.read_now()

    async def enqueue_jobs(self, jobs: Sequence[NewJob]) -> set[UUID]:
        """Insert jobs inside this transaction: used by `task.enqueue` while the block is open."""
        self.enqueued = True
        return await self._inner.enqueue_jobs(jobs)

    async def placed(self, jobs: Sequence[NewJob]) -> list[int]:
        """The shard of these jobs: that of this transaction."""
        assert self._here is not None
        return self._here.place(jobs)

    async def enqueue_unique(self, jobs: Sequence[NewJob]) -> set[UUID]:
        """Insert jobs of unique tasks inside this transaction, if their keys are free."""
        self.enqueued = True
        return await self._inner.enqueue_unique(jobs)

    async def read_unique(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        """Which jobs have these keys of unique tasks."""
        return await self._inner.read_unique(names)

    async def replace_job(self, job: NewJob) -> UUID | None:
        """Give the job that has this one's key its arguments and time."""
        self.enqueued = True
        return await self._inner.replace_job(job)

    async def send_signals(self, signals: Sequence[NewSignal]) -> dict[str, UUID]:
        """Send signals inside this transaction: used by `job.signal` while the block is open."""
        if self._here is not None:
            self._here.refuse_elsewhere(signal.job_id for signal in signals)
        self.enqueued = True
        return await self._inner.send_signals(signals)

    async def read_keys(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        """Which jobs have these (task, key) names: asked for those that could not be enqueued."""
        return await self._inner.read_keys(names)

    async def guard_lease(self, term: Term) -> bool:
        """Keep others from taking over this lease until the commit: used by `lease.guard(tx)`."""
        return await self._inner.guard_lease(term)

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one of this transaction's coroutines from synchronous code, and wait for it."""
        return self._home.wait_for(work)


class SyncTransaction:
    """Handed to the body of `with ctx.transaction() as tx`."""

    def __init__(self, block: TaskTransaction) -> None:
        self._block = block

    @property
    def connection(self) -> Any:
        """With `connection=`, the object given there; otherwise the driver's own, which belongs to another thread."""
        return self._block.connection

    @property
    def result(self) -> Any:
        """Set it to store a result with the completion."""
        return self._block.result

    @result.setter
    def result(self, value: Any) -> None:
        self._block.result = value

    def execute(self, sql: str, /, *args: object, **named: object) -> None:
        """Run a statement: `tx.execute("update rates set x = :x", x=1)`, or in the driver's own style."""
        self._block.wait_for(self._block.execute(sql, *args, **named))

    def fetch(self, sql: str, /, *args: object, **named: object) -> list[dict[str, Any]]:
        """Run a query and return its rows."""
        return self._block.wait_for(self._block.fetch(sql, *args, **named))

    def guard_lease(self, term: Term) -> bool:
        """Keep others from taking over this lease until the commit: used by `lease.guard_sync(tx)`."""
        return self._block.wait_for(self._block.guard_lease(term))


def wait_for(work: Awaitable[T], loop: asyncio.AbstractEventLoop) -> T:
    """Run an awaitable on a loop, and wait for it in this other thread."""

    async def awaited() -> T:
        return await work

    return asyncio.run_coroutine_threadsafe(awaited(), loop).result()


def run_here(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits (a synchronous connection's) in this thread, without a loop."""
    try:
        work.send(None)
    except StopIteration as ended:
        answer: T = ended.value
        return answer
    work.close()
    raise UsageError("A synchronous connection cannot be waited for.", remedy="Pass an asynchronous one.")


current: ContextVar[TaskTransaction | None] = ContextVar("reltask_transaction", default=None)
"""The block that the running code was started in. It may have ended: use `open_transaction`."""


def open_transaction() -> TaskTransaction | None:
    """The open transaction that a call made here has to join, or None."""
    transaction = current.get()
    return transaction if transaction is not None and transaction.open else None
